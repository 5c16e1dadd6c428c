#!/usr/bin/env bash
# Everything a host with N GPUs can show, in one command of ten to fifteen minutes: checkpoints side by side, recovery
# over NCCL, a stand-in for two nodes, resharding, link rates. Results and logs in $OUT (default: ./gpu-results).
#   tests/gpu/run_host.sh N [MODEL]
# Run directories go to $TMPDIR: tens of GB with a real model.
# PARTS="rates recovery" runs these alone; REPEATS and CLASSES are the recovery's.
# NVLink multicast stays off: in-process restart cannot abort it, and a shared host may not survive it.
set -u
cd "$(dirname "$0")/../.."
gpus=${1:?usage: run_host.sh NUMBER_OF_GPUS [MODEL]}
model=${2:-1.5b}
out=${OUT:-gpu-results}/host
mkdir -p "$out"
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1 PYTHONUNBUFFERED=1
export TORCH_CPP_LOG_LEVEL=ERROR
python=${PYTHON:-python3}
failed=0

part() { # name, seconds, command …
  local name=$1 limit=$2
  shift 2
  [[ " ${PARTS:-$name} " == *" $name "* ]] || return 0
  local begin=$SECONDS
  timeout --kill-after=10 "$limit" "$@" >"$out/$name.log" 2>&1
  local code=$?
  tail -n 12 "$out/$name.log" | cut -c1-400
  echo "== $name: exit $code after $((SECONDS - begin)) s"
  [ "$code" -eq 0 ] || failed=1
}

part rates 45 "$python" tests/gpu/host_parts.py rates --gpus "$gpus" --out "$out"
part checkpoint 280 "$python" tests/gpu/bench_checkpoint.py --ranks "$gpus" --out "$out" --minutes 3.5 --intervals 3
part recovery 240 "$python" tests/gpu/recovery.py --launchers 1 --ranks "$gpus" --model "$model" --out "$out" \
  --repeats "${REPEATS:-5}" --classes "${CLASSES:-exception,collective_hang,sigkill}"
part staging 45 "$python" tests/gpu/staging_order.py --out "$out"
part holder 120 "$python" tests/gpu/host_parts.py holder --model "$model" --out "$out"
part nodes 120 "$python" tests/gpu/host_parts.py nodes --gpus "$gpus" --model "$model" --out "$out"
part reshard 160 "$python" tests/gpu/host_parts.py reshard --gpus "$gpus" --model toy --out "$out"
exit "$failed"
