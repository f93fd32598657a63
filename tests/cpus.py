"""Run tests as if on other processors: `python tests/cpus.py [pytest's arguments]`.

Vector units and libraries are limited by their own environment variables, so rounding is that of
an older or another machine. A test that holds on one processor only fails here.
"""

import os
import subprocess
import sys

# Torch's own kernels, oneDNN's, MKL's, and on how many threads.
PROCESSORS = {
    "no vector units": ("default", "SSE41", "COMPATIBLE", 1),
    "AVX2": ("avx2", "AVX2", "AVX2", 1),
    "AVX2, two threads": ("avx2", "AVX2", "AVX2", 2),
    "AVX-512, two threads": ("avx512", "AVX512_CORE", "AVX512", 2),
}
VARIABLES = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR", "FOREVER_TEST_THREADS")


def main(arguments: list[str]) -> int:
    """Run pytest once a processor, and go on after failures; return 0 if all tests pass."""
    failed: list[str] = []
    for name, values in PROCESSORS.items():
        limits = {key: str(value) for key, value in zip(VARIABLES, values, strict=True)}
        limits["OMP_WAIT_POLICY"] = "passive"  # threads that wait leave the cores to other tests
        print(f"== {name}: {limits}", flush=True)
        command = [sys.executable, "-m", "pytest", *arguments]
        if subprocess.run(command, env=os.environ | limits, check=False).returncode:
            failed.append(name)
    if failed:
        print(f"failed on: {'; '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
