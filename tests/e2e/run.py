"""Runs system tests: tests/e2e/run.py [--binaries=DIR] [unittest arguments…].

Without --binaries the programs lie under the current folder, as in the runfiles of Bazel.
"""

import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))


def main():
    arguments = [sys.argv[0]]
    binaries = os.getcwd()
    for argument in sys.argv[1:]:
        if argument.startswith("--binaries="):
            binaries = os.path.abspath(argument.partition("=")[2])
        else:
            arguments.append(argument)
    os.environ["SLUICE_E2E_BINARIES"] = binaries
    sys.path.insert(0, HERE)
    sys.dont_write_bytecode = True
    unittest.main(module=None, argv=arguments, verbosity=2)


if __name__ == "__main__":
    main()
