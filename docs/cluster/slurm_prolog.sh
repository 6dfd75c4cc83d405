#!/bin/sh
# Slurm's Prolog (slurm.conf: Prolog=/etc/slurm/slurm_prolog.sh), which root runs on each node before a job. It starts the coordinator of the
# job's user. The coordinator outlives the job and serves the user's later jobs; a second one ends at once with "a coordinator runs already".
# TREADLE is the program, and RUN_AS the command that runs it as the user (tests replace both).
treadle="${TREADLE:-treadle}"
run_as="${RUN_AS:-runuser -u ${SLURM_JOB_USER:-root} --}"
$run_as setsid "$treadle" coordinator --policy "${TREADLE_POLICY:-give-way}" >/dev/null 2>&1 </dev/null &
exit 0 # a job must neither wait for the coordinator nor fail because of it
