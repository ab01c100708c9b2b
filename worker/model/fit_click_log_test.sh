#!/bin/sh
# The default log and the default settings end within 0.004 AUC of the planted optimum.
exec "$1" --seeds=1,2,3 --within=0.004
