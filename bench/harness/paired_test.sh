#!/bin/bash
exec /usr/bin/python3 -B bench/harness/paired_test.py
