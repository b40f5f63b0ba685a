#!/bin/sh
# Make a virtual environment with the program, vLLM and the development tools in it.
# usage: setup.sh PYTHON VENV cpu|gpu [TORCH_INDEX]
set -eu
python=$1 venv=$2 backend=$3 torch_index=${4:-}

say() { printf '%s\n' "setup: $*"; }
fail() { printf '%s\n' "setup: $*" >&2; exit 2; }

# Debian splits venv out of Python, and what vLLM compiles when it starts (torch.compile on a
# CPU, Triton on a card) needs a compiler and Python's headers. Installed here where that is possible without asking for a password.
install_debian() {
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "installing $*"
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$@" >/dev/null
    else
        fail "missing on this machine: $*; install them first, such as: sudo apt-get install $*"
    fi
}

command -v "$python" >/dev/null || install_debian python3 python3-venv python3-dev
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$python is $("$python" -V 2>&1), but 3.11 or later is needed: make PYTHON=python3.12 ..."
"$python" -c 'import ensurepip, venv' 2>/dev/null || install_debian python3-venv
case $backend in
cpu | gpu) ;;
*) fail "BACKEND is '$backend', but must be cpu or gpu" ;;
esac
command -v g++ >/dev/null || install_debian g++
"$python" - <<'PY' || install_debian python3-dev
import pathlib, sys, sysconfig
sys.exit(not pathlib.Path(sysconfig.get_paths()["include"], "Python.h").is_file())
PY

say "virtual environment in $venv ($("$python" -V), vLLM for $backend)"
"$python" -m venv "$venv"
pip="$venv/bin/python -m pip --disable-pip-version-check"
if [ "$backend" = cpu ] && [ -n "$torch_index" ]; then
    say "PyTorch"
    $pip install -q --index-url "$torch_index" torch==2.13.0
fi
say "packages: some minutes and 4 GB the first time"
$pip install -q -e ".[$backend,dev]"

# The torchvision that comes along may not match a CPU build of PyTorch; text models do without.
if [ "$backend" = cpu ] && ! "$venv/bin/python" -c 'import torchvision' 2>/dev/null; then
    $pip uninstall -q -y torchvision torchaudio torchcodec
fi
say "done"
