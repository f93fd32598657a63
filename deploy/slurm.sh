#!/bin/bash
#SBATCH --job-name=forever
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@120
#SBATCH --output=forever-%j.log
#
# A sweep on all machines of an allocation, with the arguments of `forever sweep`:
#
#   sbatch deploy/slurm.sh components --scale paper --out /shared/runs
#
# The working directory, forever's environment and --out must be on all machines. Two minutes before
# the time is up, runs save; the same command resumes them.
set -euo pipefail
export PYTHONUNBUFFERED=1
# srun does not inherit --cpus-per-task, and Ray would get one core.
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}
# Head and workers share a token that lives as long as the job.
export RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=$(openssl rand -hex 32)
export RAY_AUTH_TOKEN
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# Slurm signals this shell, on the first machine, which signals the sweep there alone. (A TERM to srun
# would become a KILL for all that it started.) A sweep that has not begun has nothing to save.
sweep=$(mktemp)  # holds the process id of the sweep
trap 'if [ -s "$sweep" ]; then kill -TERM "$(cat "$sweep")"; else kill "$steps"; fi; wait "$steps"' TERM
# symmetric-run does not tell its command where the cluster is.
srun ray symmetric-run --address "$head:6379" --min-nodes "$SLURM_JOB_NUM_NODES" \
    --disable-usage-stats -- env RAY_ADDRESS="$head:6379" \
    sh -c 'echo $$ > "$0"; exec "$@"' "$sweep" python -m forever.cli.start sweep "$@" &
steps=$!
wait "$steps"
