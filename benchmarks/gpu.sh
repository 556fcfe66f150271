#!/usr/bin/env bash
# Everything that is measured on a GPU, in about ten minutes, and before that the tests that need one. Each part has
# a time limit of its own, so that one that hangs leaves time for the others; it then shows where it was.
#
#     benchmarks/gpu.sh      # with another Python than that of .venv: PYTHON=python3 benchmarks/gpu.sh
#
# MNIST has to be there (docs/data.md); packages that this Python lacks may lie in a folder on PYTHONPATH.
set -u
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
export PYTHONPATH=src${PYTHONPATH:+:$PYTHONPATH} PYTHONFAULTHANDLER=1 PYTHONUNBUFFERED=1
failed=0

part() {
  local limit=$1 start=$SECONDS
  shift
  echo "== $*"
  timeout --signal=ABRT --kill-after=10 "$limit" "$python" "$@" || failed=1
  echo "== after $((SECONDS - start)) s"
}

part 240 -m pytest --durations=5 tests/test_fused.py tests/test_graphs.py
part 240 -m whalefl bench --device cuda --out results/bench/gpu.json
part 150 benchmarks/whale_run.py --device cuda
part 60 benchmarks/fisher_cost.py --device cuda
part 60 benchmarks/together.py
part 20 benchmarks/performance_page.py
exit $failed
