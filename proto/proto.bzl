"""C++ code from .proto files by Debian's protoc and grpc_cpp_plugin (no rules_proto toolchain offline)."""

def sluice_proto(name, src, deps = [], grpc = False, grpc_deps = [], alwayslink = False):
    """Generates NAME (messages only) and, with grpc, NAME_grpc (the service stubs; slow to compile)."""
    stem = src[:-len(".proto")]
    native.genrule(
        name = name + "_gen",
        srcs = [src] + [d + "_src" for d in deps],
        outs = [stem + ".pb.h", stem + ".pb.cc"],
        cmd = "protoc -I. --cpp_out=$(GENDIR) $(location %s)" % src,
    )
    native.filegroup(name = name + "_src", srcs = [src] + [d + "_src" for d in deps], visibility = ["//visibility:public"])
    native.cc_library(
        name = name,
        srcs = [stem + ".pb.cc"],
        hdrs = [stem + ".pb.h"],
        copts = ["-Wno-unused-parameter", "-g0", "-O1"],
        deps = deps + ["@system//:protobuf"],
        alwayslink = alwayslink,
        visibility = ["//visibility:public"],
    )
    if grpc:
        native.genrule(
            name = name + "_grpc_gen",
            srcs = [src] + [d + "_src" for d in deps],
            outs = [stem + ".grpc.pb.h", stem + ".grpc.pb.cc"],
            cmd = "protoc -I. --plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin --grpc_out=$(GENDIR) $(location %s)" % src,
        )
        native.cc_library(
            name = name + "_grpc",
            srcs = [stem + ".grpc.pb.cc"],
            hdrs = [stem + ".grpc.pb.h"],
            copts = ["-Wno-unused-parameter", "-g0", "-O1"],
            deps = [":" + name, "@system//:grpc"] + grpc_deps,
            visibility = ["//visibility:public"],
        )
