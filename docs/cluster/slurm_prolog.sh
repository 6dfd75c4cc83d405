#!/bin/sh
# Slurm's Prolog (slurm.conf: Prolog=/etc/slurm/slurm_prolog.sh), run by root on each node before a job: the coordinator of the job's user.
# It outlives the job and serves the user's later ones; a second one ends at once with "a coordinator runs already".
# TREADLE: the program; RUN_AS: how to become the user (tests replace it).
treadle="${TREADLE:-treadle}"
run_as="${RUN_AS:-runuser -u ${SLURM_JOB_USER:-root} --}"
$run_as setsid "$treadle" coordinator --policy "${TREADLE_POLICY:-give-way}" >/dev/null 2>&1 </dev/null &
exit 0 # a job must not wait for, or fail by, the coordinator
