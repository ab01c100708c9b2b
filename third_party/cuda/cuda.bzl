"""cuda_library: a library of CUDA sources where nvcc is, of its stand-ins where it is not."""

load("@local_cuda//:defs.bzl", "ARCHITECTURES", "CUDA_HOME", "NVCC")

# The same bits as on the CPU: no contraction, no flushing of denormals, IEEE division and square root.
_EXACT = "-fmad=false -ftz=false -prec-div=true -prec-sqrt=true"

def _gencode(ptx_only):
    if ptx_only:
        return "-gencode arch=compute_%s,code=compute_%s" % (ARCHITECTURES[0], ARCHITECTURES[0])
    flags = ["-gencode arch=compute_%s,code=sm_%s" % (a, a) for a in ARCHITECTURES]
    return " ".join(flags + ["-gencode arch=compute_%s,code=compute_%s" % (ARCHITECTURES[-1], ARCHITECTURES[-1])])

def cuda_library(name, srcs, hdrs = [], inputs = [], stand_ins = [], deps = [], ptx_only = False, **kwargs):
    """Compiles each .cu of srcs with nvcc.

    hdrs: headers that the .cu files and users include; they must not include CUDA's own.
    inputs: headers that the .cu files alone include.
    stand_ins: .cc files that define the same functions for a build without nvcc (usually: "there is no GPU here").
    ptx_only: for the oldest architecture, and as PTX, which the driver translates where it runs: what is slow to compile.
    deps: for the C++ side only; a .cu file sees hdrs and headers of the source tree.
    """
    if not NVCC:
        native.cc_library(name = name, srcs = stand_ins, hdrs = hdrs, deps = deps, **kwargs)
        return
    objects = []
    for src in srcs:
        object = src[:-len(".cu")] + ".pic.o"
        native.genrule(
            name = src[:-len(".cu")] + "_nvcc",
            srcs = [src] + hdrs + inputs,
            outs = [object],
            cmd = NVCC + " -c -std=c++20 -O3 " + _EXACT + " " + _gencode(ptx_only) +
                  " -ccbin g++ -Xcompiler -fPIC,-ffp-contract=off -I. -I$(GENDIR) -o $@ $(location %s)" % src,
        )
        objects.append(object)
    native.cc_library(
        name = name,
        srcs = objects,
        hdrs = hdrs,
        linkopts = ["-L%s/lib64" % CUDA_HOME, "-lcudart_static", "-ldl", "-lrt", "-lpthread"],
        deps = deps,
        **kwargs
    )
