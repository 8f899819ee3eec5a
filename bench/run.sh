#!/usr/bin/env bash
# All benchmarks in both runtimes beside C, for calls only where there is a GPU (CUDA_IPC_DRIVER=cuda). CUDA_IPC_TEST_DENO and
# CUDA_IPC_TEST_BUN name the runtimes where npm did not install them. Names of benchmarks as arguments choose some; options
# (--quick, --no-quick, --json) are passed on.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
deno=${CUDA_IPC_TEST_DENO:-node_modules/.bin/deno}
bun=${CUDA_IPC_TEST_BUN:-node_modules/.bin/bun}
names=() options=()
for argument in "$@"; do
  if [[ $argument == --* ]]; then options+=("$argument"); else names+=("$argument"); fi
done
[ ${#names[@]} -gt 0 ] || names=(calls wakeup completion bandwidth)

folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT

for name in "${names[@]}"; do
  beside=()
  if [ "$name" = calls ] && [ "${CUDA_IPC_DRIVER:-simulator}" = cuda ]; then
    cuda=${CUDA_HOME:-/usr/local/cuda}
    gcc -O2 -I"$cuda/include" bench/calls.c -L"$cuda/lib64/stubs" -lcuda -o "$folder/calls"
    beside=("$folder/calls")
  elif [ "$name" = wakeup ]; then
    gcc -O2 -pthread bench/wakeup.c -o "$folder/wakeup"
    beside=("$folder/wakeup")
  fi
  "$deno" run -A --no-check "bench/$name.ts" "${options[@]}" "${beside[@]}"
  "$bun" "bench/$name.ts" "${options[@]}" "${beside[@]}"
done
