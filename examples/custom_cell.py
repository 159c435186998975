"""Train your own recurrent cell with C-RBP: digits of 8×8 pixels, about ten seconds on one core. Needs scikit-learn."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from rfpn.layers import RecurrentLayer


class MyCell(nn.Module):
    """h ← tanh(W ∗ h + x). Any module that maps (drive, state) to the next state will do."""

    def __init__(self, channels: int):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x, h):
        return torch.tanh(self.conv(h) + x)


torch.manual_seed(0)
images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
images = images.float().view(-1, 1, 8, 8) / 16
train, test = torch.randperm(len(images)).split([1400, len(images) - 1400])
drive, readout = nn.Conv2d(1, 12, 3, padding=1), nn.Linear(12 * 8 * 8, 10)
recurrent = RecurrentLayer(MyCell(12), steps=16, gradient="rbp", lipschitz=True)
optimizer = torch.optim.Adam(nn.ModuleList([drive, recurrent, readout]).parameters(), lr=5e-3)
for epoch in range(6):
    for batch in train[torch.randperm(len(train))].split(50):
        output = recurrent(drive(images[batch]))
        loss = F.cross_entropy(readout(output.hidden.flatten(1)), labels[batch])
        optimizer.zero_grad()
        (loss + 0.1 * output.penalty).backward()
        optimizer.step()
    print(f"epoch {epoch + 1} loss {loss:.3f}", *(f"{name} {value:.3g}" for name, value in recurrent.diagnostics.items()))
with torch.no_grad():
    output = recurrent.eval()(drive(images[test]))
    accuracy = (readout(output.hidden.flatten(1)).argmax(dim=1) == labels[test]).float().mean()
print(f"accuracy {accuracy:.3f} residual {output.residual.mean():.2g}")
