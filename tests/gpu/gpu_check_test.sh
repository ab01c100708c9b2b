#!/bin/bash
# gpu_check_test.sh GPU_CHECK: passes where the kernels' tests pass, or where there is no GPU and the binary says so.
set -uo pipefail
output=$("$1" 2>&1)
code=$?
echo "$output"
[[ $code -eq 0 ]] && exit 0
[[ $code -eq 3 && $output == *"no GPU to test on: "?* ]] && echo "skipped" && exit 0
exit 1
