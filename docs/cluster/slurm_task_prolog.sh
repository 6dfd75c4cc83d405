#!/bin/sh
# Slurm's TaskProlog (slurm.conf: TaskProlog=/etc/slurm/slurm_task_prolog.sh): lines `export NAME=VALUE` of its output set the task's environment.
# Tasks of a partition or QOS named in TREADLE_OPPORTUNISTIC (default: words that contain preempt, scavenge or opportunistic) become
# opportunistic jobs, all others guaranteed ones.
pattern="${TREADLE_OPPORTUNISTIC:-preempt|scavenge|opportunistic}"
class=guaranteed
if printf '%s\n%s\n' "${SLURM_JOB_PARTITION:-}" "${SLURM_JOB_QOS:-}" | grep -Eq -- "$pattern"; then class=opportunistic; fi
echo "export TREADLE_JOB_CLASS=$class"
echo "export TREADLE_JOB_NAME=slurm-${SLURM_JOB_ID:-0}.${SLURM_PROCID:-0}"
