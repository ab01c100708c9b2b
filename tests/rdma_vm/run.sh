#!/bin/bash
exec /usr/bin/python3 -B "$(dirname "${BASH_SOURCE[0]}")/run.py" "$@"
