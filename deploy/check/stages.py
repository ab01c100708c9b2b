"""What each stage of ./check does."""

import os
import re
import shutil
from concurrent import futures

from bazel import CONFIGS, bazel, info, query, run

# Tests of real processes have stages of their own; everything else is a unit test.
SYSTEM_TAGS = ("e2e",)


class Result:
    def __init__(self, name, budget, quick, nightly):
        self.name, self.budget, self.quick, self.nightly = name, budget, quick, nightly
        self.passed = self.failed = 0
        self.failures, self.skipped = [], []
        self.seconds = 0.0

    def log(self, part=""):
        return os.path.abspath("out/check/%s%s.log" % (self.name, part and "-" + part))

    @property
    def limit(self):
        return (60 if self.nightly else 3) * self.budget

    def ok(self, count=1):
        self.passed += count

    def fail(self, what, details=""):
        self.failed += 1
        self.failures.append("%s: %s" % (self.name, what))
        print("   FAILED %s" % what)
        for line in details.splitlines():
            print("      | " + line)

    def skip(self, what, why):
        self.skipped.append((what, why))

    def count(self, done, targets, labels, cases=False):
        """Counts one result for each label that was asked for; with `cases`, one for each case of a Python test."""
        for label in labels:
            status, log = targets.get(label, ("NOT RUN", None))
            if status == "PASSED":
                self.ok(_python_cases(log) if cases else 1)
                for case, why in _skipped_cases(log):
                    self.skip("%s %s" % (label, case), why)
            else:
                details = "(more in %s)" % done.log
                if log and os.path.exists(log):
                    with open(log, errors="replace") as file:
                        details = "".join(file.readlines()[-40:])
                elif status in ("NO BUILD", "NOT RUN"):
                    details = done.tail(25)
                self.fail("%s %s" % (label, status.lower().replace("_", " ")), details)
        if done.code is None:
            self.fail("ended after %d s" % done.seconds, done.tail())
        elif done.code != 0 and not self.failed:
            self.fail("bazel ended with code %d" % done.code, done.tail())


def _python_cases(log):
    """How many cases Python's unittest says that it ran and did not skip."""
    if not log:
        return 1
    with open(log, errors="replace") as file:
        text = file.read()
    ran = re.search(r"^Ran (\d+) tests? in", text, re.MULTILINE)
    skipped = re.search(r"^OK \(skipped=(\d+)\)", text, re.MULTILINE)
    return max(1, int(ran.group(1)) - (int(skipped.group(1)) if skipped else 0)) if ran else 1


def _skipped_cases(log):
    """(name, reason) of each case that Python's unittest skipped, and of the first of each reason that GoogleTest did."""
    if not log:
        return []
    with open(log, errors="replace") as file:
        text = file.read()
    skipped = re.findall(r"^(\w+) \(.*\) \.\.\. skipped '(.*)'$", text, re.MULTILINE)
    reasons = {}
    for case, why in re.findall(r"^\[ RUN      \] (\S+)\n\S+: Skipped\n(.*)$", text, re.MULTILINE):
        reasons.setdefault(why, case)
    return skipped + [(case, why) for why, case in reasons.items()]


def _tests(where, tags=(), without=()):
    """Test targets under `where` that carry one of `tags` (if given), none of `without`, and are not manual."""
    expression = "tests(%s)" % where
    if tags:
        expression = " + ".join("attr(tags, '\\b%s\\b', %s)" % (tag, expression) for tag in tags)
    for tag in tuple(without) + ("manual",):
        expression = "(%s) - attr(tags, '\\b%s\\b', %s)" % (expression, tag, "tests(%s)" % where)
    return query(expression)


def build(result):
    done, targets = bazel("build", ["--keep_going", "//..."], result.log(), result.limit)
    broken = [label for label, (status, _) in targets.items() if status == "NO BUILD"]
    if done.code == 0:
        result.ok()
    elif done.code is None:
        result.fail("the build was ended after %d s" % done.seconds, done.tail())
    else:
        result.fail("the build of %s" % (", ".join(broken[:5]) or "//..."), done.tail(60))


def unit(result):
    labels = _tests("//...", without=SYSTEM_TAGS)
    done, targets = bazel("test", ["--keep_going", "--build_tests_only", "--test_output=summary"] + labels,
                          result.log(), result.limit)
    result.count(done, targets, labels)


def simulation(result):
    """Every seed is a run of the whole cluster; both cores take their share of the seeds."""
    seeds = 500 if result.quick else 1000000 if result.nightly else 10000
    done, _ = bazel("build", ["//tests/sim"], result.log("build"), result.limit)
    if done.code != 0:
        return result.fail("the build of //tests/sim", done.tail())
    program = os.path.join(info("bazel-bin"), "tests/sim/sim")
    jobs = max(1, min(os.cpu_count() or 1, 8))
    bounds = [seeds * i // jobs for i in range(jobs + 1)]
    logs = [result.log(str(i + 1)) for i in range(jobs)]

    def share(i):
        return run([program, "--seeds", "%d-%d" % (bounds[i] + 1, bounds[i + 1])], logs[i], result.limit)

    with futures.ThreadPoolExecutor(jobs) as pool:
        runs = list(pool.map(share, range(jobs)))
    if all(done.code == 0 for done in runs):
        return result.ok()
    ended = " (ended after %d s)" % runs[0].seconds if any(done.code is None for done in runs) else ""
    result.fail("%d seeds%s" % (seeds, ended), "\n".join(done.tail(10) for done in runs))


# Themes of tests/e2e that kill processes in mid-run.
CHAOS = "(kill|chaos|restart)"


def _system(result, labels):
    if not labels:
        return result.skip(result.name, "no test of this tree is of the kind")
    # One at a time: they start whole clusters, and wait for real processes.
    done, targets = bazel("test", ["--keep_going", "--test_output=summary", "--local_test_jobs=1"] + labels,
                          result.log(), result.limit)
    result.count(done, targets, labels, cases=True)


def e2e(result):
    _system(result, [t for t in _tests("//...", tags=SYSTEM_TAGS) if not re.search(CHAOS, t)])


def chaos(result):
    _system(result, [t for t in _tests("//...", tags=SYSTEM_TAGS) if re.search(CHAOS, t)])


def install(result):
    script = "tests/install/run.sh"
    if not os.path.exists(script):
        return result.skip("install", script + " is not there")
    done = run([script], result.log(), result.limit)
    counted = re.search(r"^(\d+) passed, (\d+) failed$", done.tail(1))
    if counted:
        result.ok(int(counted.group(1)))
    if done.code != 0 or not counted or int(counted.group(2)):
        result.fail(script, done.tail())


def fuzz(result):
    if not shutil.which("clang++-16"):
        return result.skip("fuzz", "there is no clang++-16")
    libraries = query("filter('_fuzz$', kind(cc_library, //...))")
    binaries = query("kind(cc_binary, //deploy/check/fuzz/...)")
    covered = query("deps(//deploy/check/fuzz/..., 1)")
    for library in libraries:
        if library not in covered:
            result.fail("%s is not in deploy/check/fuzz/BUILD" % library)
    done, _ = bazel("build", CONFIGS["fuzz"] + binaries, result.log("build"), result.limit)
    if done.code != 0:
        return result.fail("the build with libFuzzer", done.tail())
    folder = os.path.join(info("bazel-bin", CONFIGS["fuzz"]), "deploy/check/fuzz")
    seconds = 600 if result.nightly else (5 if result.quick else 60) // max(len(binaries), 1) + 1
    for label in binaries:
        name = label.rpartition(":")[2]
        corpus = os.path.abspath("out/check/corpus/" + name)
        os.makedirs(corpus, exist_ok=True)
        done = run([os.path.join(folder, name), "-max_total_time=%d" % seconds, "-max_len=4096", "-rss_limit_mb=1024",
                    "-timeout=10", "-artifact_prefix=" + os.path.abspath("out/check/") + "/" + name + "-", corpus],
                   result.log(name), result.limit)
        if done.code == 0:
            result.ok()
        else:
            result.fail(name, done.tail())


def _sanitized(result, config, labels, env):
    if not labels:
        return result.skip(config, "no test qualifies")
    options = ["--keep_going", "--test_timeout=300", "--build_tests_only", "--test_output=summary", "--test_env=" + env]
    done, targets = bazel("test", CONFIGS[config] + options + labels, result.log(config), result.limit)
    result.count(done, targets, labels)


# Where threads of ours meet, or memory is shared: what runs an event loop, and what all threads write to. Cores and numerics
# have no thread.
THREADED = ("tests(//...) intersect rdeps(//..., //transport/loop + //transport/shm/...) + //base:log_test + "
            "//base:metrics_test + //base:trace_test")
# What reads bytes of strangers or of files, and what writes to memory by computed addresses.
READERS = ("(wire|hello|codec|compression|config|idx|csv|libsvm|data|snapshot|reassembler|receiver|shm|hostile|"
           "conformance|multipath|rdma|server/table|replication|topology/formats).*_test$")


def sanitizers(result):
    if result.quick:
        return result.skip("sanitizers", "--quick")
    # gRPC and protobuf come from Debian without instrumentation: their own synchronisation looks like races. What has
    # threads of ours uses the standard library only, so the tests without gRPC are those that can tell.
    grpc = set(query("rdeps(//..., @system//:grpc)"))
    system = set(_tests("//...", tags=SYSTEM_TAGS + ("no-sanitizer",)))
    automatic = set(_tests("//..."))  # neither query below knows which tests are manual
    threaded = [t for t in query(THREADED) if t in automatic]
    readers = [t for t in query("filter('%s', tests(//...))" % READERS) if t in automatic]
    left_out = sorted((set(threaded) | set(readers)) & grpc)
    if left_out:
        result.skip("%d tests that link gRPC" % len(left_out), "Debian's gRPC is not instrumented")
    _sanitized(result, "tsan", [t for t in threaded if t not in grpc | system],
               "TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1")
    _sanitized(result, "asan", [t for t in readers if t not in grpc | system], "UBSAN_OPTIONS=print_stacktrace=1")


def vm(result):
    """Scenarios in two emulated machines, which have verbs and networks that fail; all in one pair that boots once."""
    script = "tests/rdma_vm/run.sh"
    done = run(["deploy/setup.sh", "vm"], result.log("setup"), result.limit)
    if done.code != 0:
        return result.skip(script, "deploy/setup.sh vm: " + (done.tail(1) or "ended with %s" % done.code))
    done = run([script, "--targets"], result.log("targets"), result.limit)
    targets = done.tail().split()
    done, _ = bazel("build", targets, result.log("build"), result.limit)
    if done.code != 0:
        return result.fail("the build of " + " ".join(targets), done.tail())
    done = run([script, "-v", "--binaries=" + info("bazel-bin")], result.log(), result.limit)
    with open(done.log, errors="replace") as file:
        text = file.read()
    for case, why in _skipped_cases(done.log):
        result.skip(case, why)
    failed = re.findall(r"^(?:FAIL|ERROR): (\S+) \((.*)\)$", text, re.MULTILINE)
    for case, where in failed:
        result.fail("%s (%s)" % (case, where), "(more in %s)" % done.log)
    ran = re.search(r"^Ran (\d+) tests? in", text, re.MULTILINE)
    skipped = re.search(r"skipped=(\d+)", text)
    if ran:
        result.ok(max(0, int(ran.group(1)) - len(failed) - (int(skipped.group(1)) if skipped else 0)))
    if done.code != 0 and not failed:
        result.fail(script, done.tail())


STAGES = {f.__name__: f for f in (build, unit, simulation, e2e, chaos, install, fuzz, sanitizers, vm)}
