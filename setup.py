"""Packaging of rfpn; ``make setup`` builds a whole environment around it."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (ROOT / "rfpn" / "__init__.py").read_text()).group(1)

setup(
    name="rfpn",
    version=VERSION,
    description="Recurrent vision models trained at constant memory: R-FPN and Pathfinder",
    license="Apache-2.0",
    packages=find_packages(include=["rfpn", "rfpn.*"]),
    package_data={"rfpn.model_zoo": ["*/*.yaml", "*/*.pth"]},
    python_requires=">=3.10",
    # Left out on purpose: Detectron2 (the package index has no distribution of that name) and
    # panopticapi (likewise): tools/install_detectron2.py installs both where they are missing.
    # rfpn.fixed_point and rfpn.layers work without them. No exact versions here: whoever has a
    # torch and a Detectron2 that fit together keeps them.
    install_requires=[
        "torch>=2.6",
        "torchvision>=0.21",
        "numpy",
        "pillow",
        "scipy",
        "scikit-learn",
        "matplotlib",
        "plotly",  # tools/report.py
        "tqdm",
        "shapely",  # cropping polygon annotations
    ],
    extras_require={"test": ["pytest>=7.3", "hypothesis", "selenium"]},
)
