"""What mpirun and srun put before a line, to say which rank wrote it."""

from __future__ import annotations

import re

OPEN_MPI_4 = re.compile(r"\[[^\[\]]{,256}?,(\d{1,7})\]<(?:stdout|stderr|stddiag)>:")
OPEN_MPI = re.compile(f"{OPEN_MPI_4.pattern} ")
HYDRA = re.compile(r"\[(\d{1,7})\] ")
"""MPICH's and Intel MPI's."""
SRUN = re.compile(r" *(\d{1,7}): ?")
OF_MPIRUN = (OPEN_MPI, OPEN_MPI_4, HYDRA)
"""For a line of an mpirun that is not known, in the order in which they are tried."""
