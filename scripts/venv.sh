#!/usr/bin/env bash
# Makes .venv in this repository with the extras named in $1 (for example "train"), once per change of pyproject.toml.
# PYTHON chooses the interpreter (default: python3).
set -euo pipefail
cd "$(dirname "$0")/.."
extras=$1
python=${PYTHON:-python3}

stop() { printf '%s\n' "$*" >&2; exit 2; }

command -v "$python" >/dev/null || stop "Python is missing: install Python 3.11 or newer (Debian, Ubuntu: apt-get install python3 python3-venv)."
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    stop "$python is $("$python" -V 2>&1); Python 3.11 or newer is needed. Set PYTHON to one."
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    stop "$python has no venv module (Debian, Ubuntu: apt-get install python3-venv)."

stamp=.venv/.installed-$(printf '%s\n' "$extras" | cat - pyproject.toml | cksum | tr ' ' -)
if [ -f "$stamp" ]; then exit 0; fi

[ -x .venv/bin/python ] || "$python" -m venv .venv
printf 'Installing into .venv (once; the largest part is PyTorch) ...\n' >&2
pip() { .venv/bin/python -m pip install --quiet --disable-pip-version-check "$@"; }
# PyTorch by itself first, so that nothing below chooses another build of it
case ",$extras," in *,train,* | *,dev,*) pip torch==2.13.0 ;; esac
pip --editable ".[$extras]"
rm -f .venv/.installed-*
touch "$stamp"
