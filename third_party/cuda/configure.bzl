"""Looks for nvcc once: @local_cuda//:defs.bzl says where it is, or that there is none (then nothing needs it)."""

def _cuda_configure_impl(repository_ctx):
    candidates = []
    for variable in ["CUDA_HOME", "CUDA_PATH"]:
        if repository_ctx.os.environ.get(variable):
            candidates.append(repository_ctx.os.environ[variable] + "/bin/nvcc")
    found = repository_ctx.which("nvcc")
    if found:
        candidates.append(str(found))
    candidates.append("/usr/local/cuda/bin/nvcc")

    # --repo_env=SLUICE_WITHOUT_CUDA=1 builds as on a machine without CUDA.
    if repository_ctx.os.environ.get("SLUICE_WITHOUT_CUDA"):
        candidates = []

    nvcc = ""
    for candidate in candidates:
        # A compiler that does not answer is as good as none.
        if repository_ctx.path(candidate).exists and repository_ctx.execute([candidate, "--version"]).return_code == 0:
            nvcc = str(repository_ctx.path(candidate).realpath)
            break
    home = nvcc[:-len("/bin/nvcc")] if nvcc else ""
    repository_ctx.file("BUILD", "")

    # From Ampere on (a binary for 8.0 runs on 8.6 and 8.9), as far as this nvcc knows them; the last one is also kept as
    # PTX for what comes later.
    architectures = []
    if nvcc:
        known = repository_ctx.execute([nvcc, "--list-gpu-code"]).stdout.split("\n")
        architectures = [a for a in ["80", "90", "100"] if "sm_" + a in known]
    if not architectures:
        nvcc = ""
    repository_ctx.file("defs.bzl", "NVCC = %r\nCUDA_HOME = %r\nARCHITECTURES = %r\n" % (nvcc, home, architectures))

cuda_configure = repository_rule(
    implementation = _cuda_configure_impl,
    environ = ["CUDA_HOME", "CUDA_PATH", "PATH", "SLUICE_WITHOUT_CUDA"],
    local = True,
)
