"""A libFuzzer binary for a cc_library that defines LLVMFuzzerTestOneInput (./check --stage fuzz builds and runs them)."""

def fuzz_binary(library):
    native.cc_binary(
        name = library[2:].replace("/", "_").replace(":", "_"),
        linkopts = ["-fsanitize=fuzzer"],
        tags = ["manual"],
        deps = [library],
    )
