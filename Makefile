# make setup           build .venv once; quick when nothing changed
# make demo            set up, train R-FPN on generated scenes, score PQ, draw pictures
# make demo-pathfinder make easy Pathfinder images, train an hGRU with C-RBP, score IoU, draw the steps
# make test            set up, run the tests
# make clean           remove the environment, builds and caches; results in output/ stay

PYTHON ?= python3
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
STAMP := $(VENV)/.complete
# Lies in an environment whose set-up has begun but not ended: such a one is rebuilt.
UNFINISHED := $(VENV)/.unfinished

.PHONY: setup demo demo-pathfinder test clean

setup: $(STAMP)

# A stamp beside an interpreter that no longer runs is worth nothing.
ifneq ($(shell $(BIN)/python -c 'print("runs")' 2>/dev/null),runs)
.PHONY: $(STAMP)
endif

$(STAMP): requirements.txt setup.py tools/install_detectron2.py tools/detectron2_adaptations.py
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 10) else \
	"rfpn needs Python 3.10 or newer, $(PYTHON) is %d.%d: make PYTHON=/path/to/python3" % v[:2])'
	@if [ -e $(UNFINISHED) ] || ! $(PIP) --version >/dev/null 2>&1; then rm -rf $(VENV); fi
	@[ -e $(VENV) ] || $(PYTHON) -m venv $(VENV)
	@touch $(UNFINISHED)
	$(PIP) install -r requirements.txt
	$(BIN)/python tools/install_detectron2.py
	$(PIP) install --no-build-isolation --no-deps -e .
	@rm $(UNFINISHED)
	@touch $@

demo: setup
	$(BIN)/python tools/run_demo.py

demo-pathfinder: setup
	$(BIN)/python tools/run_pathfinder_demo.py

test: setup
	$(BIN)/python -m pytest $(PYTEST_ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
