// bench/gpu: packs the built programs with the library over a fake of CUDA, and runs all steps on them.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <sstream>
#include <string>
#include <vector>

#include "tests/integration/program.h"
#include "tests/support/catch.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;
namespace json = boost::json;
namespace fs = std::filesystem;

namespace {

/// Whether the scripts can run here. Says so if they cannot.
bool has_python() {
  if (std::system("python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null") == 0) {
    return true;
  }
  WARN("skipped: there is no python3 of 3.9 or later");
  return false;
}

Ended pack(const fs::path& folder, const std::string& words = "") {
  return run_script(folder, "exec python3 '" SHARDRUN_SOURCE "/bench/gpu/pack' packed --built --build '" SHARDRUN_BUILD
                            "' --library '" SHARDRUN_FAKE_LIBRARY "' " +
                                words);
}

Ended run_packed(const fs::path& folder, const std::string& words, const std::string& variables = "") {
  return run_script(folder, "exec env " + variables + " packed/bench/gpu/run --small --out report.json " + words);
}

/// Writes a tool that runs the program after its options, and says that it has found this many errors.
void write_sanitizer(const fs::path& folder, int errors) {
  fs::create_directory(folder / "tools");
  const fs::path path = folder / "tools/compute-sanitizer";
  std::ofstream(path) << "#!/bin/sh\nwhile [ \"${1#-}\" != \"$1\" ]; do shift 2; done\n\"$@\"\n"
                      << "echo '========= ERROR SUMMARY: " << errors << " errors'\n";
  fs::permissions(path, fs::perms::owner_all);
}

/// Makes the packed folders like those of a copied tree on another machine: everybody may write to them, and their
/// owner has no name there.
void make_foreign(const fs::path& folder) {
  REQUIRE(run_script(folder, "chmod -R a+rwX packed && { [ $(id -u) != 0 ] || chown -R 4242:4242 packed; }").code == 0);
}

std::string text_of(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

const json::object& step(const json::object& report, const std::string& name) {
  for (const json::value& each : report.at("steps").as_array()) {
    if (each.at("name").as_string() == name) {
      return each.as_object();
    }
  }
  throw std::runtime_error("the report has no step " + name);
}

std::vector<std::string> names_of(const json::object& report) {
  std::vector<std::string> names;
  for (const json::value& each : report.at("steps").as_array()) {
    names.emplace_back(each.at("name").as_string());
  }
  return names;
}

}  // namespace

TEST_CASE("bench/gpu runs all its steps over a fake of CUDA, and reports each", all_tests ? "[gpu_bench]" : "[.]") {
  if (!has_python()) {
    return;
  }
  const TemporaryFolder folder;
  const Ended packed = pack(folder.path(), "--limit-mib 1000");
  INFO(packed.err);
  REQUIRE(packed.code == 0);
  write_sanitizer(folder.path(), 0);
  make_foreign(folder.path());

  const Ended ended =
      run_packed(folder.path(), "", "PATH=\"$PWD/tools:$PATH\" LD_LIBRARY_PATH='" SHARDRUN_FAKE_LIBRARIES "'");

  INFO(ended.out << ended.err);
  REQUIRE(ended.code == 0);
  CHECK(ended.out.size() <= 12'000);
  const json::object report = read_json(folder.path() / "report.json");
  CHECK(report.at("finished").as_bool());
  CHECK(report.at("pack").as_object().contains("commit"));
  CHECK(names_of(report) == std::vector<std::string>{"machine", "first", "kernels", "own-products", "cudnn",
                                                     "verify-few", "sanitizer", "verify", "compile", "rates",
                                                     "train-124M", "ops", "ways", "nccl", "bandwidth"});
  for (const json::value& each : report.at("steps").as_array()) {
    INFO(json::serialize(each));
    const std::string status(each.at("status").as_string());
    CHECK((status == "passed" || (status == "skipped" && !each.at("reason").is_null())));
    CHECK_THAT(ended.out, Contains("== " + std::string(each.at("name").as_string()) + ": " + status + " in "));
  }
  for (const char* name : {"machine", "first", "kernels", "own-products", "verify-few", "sanitizer", "verify",
                           "train-124M", "ops", "ways"}) {
    INFO(name);
    CHECK(step(report, name).at("status") == "passed");
  }
  CHECK(step(report, "machine").at("figures").at("units").at(0).at("name") == "Fake H200");
  CHECK(step(report, "kernels").at("figures").at("cases").as_int64() > 0);
  const std::string dnn(step(report, "machine").at("figures").at("dnn").as_string());
  CHECK((step(report, "cudnn").at("status") == "passed") == dnn.starts_with("cuDNN"));
  CHECK(step(report, "ways").at("figures").as_object().contains("own attention") == dnn.starts_with("cuDNN"));
  for (const auto& [op, of] :
       step(report, "sanitizer").at("figures").at("memcheck").at("checks").at("by_op").as_object()) {
    INFO(op);
    CHECK(of.at("done").as_bool());
    CHECK(of.at("cases").as_int64() > 0);
    CHECK(of.at("cases").as_int64() <= 8);
  }
  CHECK_THAT(std::string(step(report, "nccl").at("reason").as_string()), Contains("verify has its cases over NCCL"));
  int compared = 0;
  for (const json::value& each : step(report, "verify").at("figures").at("cases").as_array()) {
    compared += each.at("status") == "passed" ? 1 : 0;
  }
  CHECK(compared == (dnn.starts_with("cuDNN") ? 7 : 5));
  CHECK_THAT(ended.out, Contains("products of matrices by cuBLASLt 13.1.0") && Contains("nccl, float32: passed: dp"));
  const json::value& training = step(report, "train-124M").at("figures");
  const json::value& ours = training.at("contestants").at("shardrun");
  CHECK(ours.at("tokens_per_s").to_number<double>() > 0);
  CHECK(ours.at("share_of_peak").to_number<double>() > 0);
  // N without the positions: 6 * (28320 - 16 * 32) + 6 * 2 * 16 * 32 a token, 4 x 16 tokens.
  CHECK(training.at("parameters").as_int64() == 28'320);
  CHECK(training.at("model_flops_per_step").as_int64() == 64 * (6 * (28'320 - 512) + 6'144));
  for (const char* name : {"first", "ops"}) {
    const json::array& ops = step(report, name).at("figures").at("ops").as_array();
    REQUIRE_FALSE(ops.empty());
    CHECK(ops[0].at("ms").to_number<double>() > 0);
    CHECK(fs::exists(folder.path() / ("gpu-trace-" + std::string(name) + ".json.gz")));
  }
}

TEST_CASE("bench/gpu: two processes train over NCCL on one GPU, and a failure of one is in the log", "[gpu_bench]") {
  if (!has_python()) {
    return;
  }
  const TemporaryFolder folder;
  REQUIRE(pack(folder.path(), "--limit-mib 1000").code == 0);
  const std::string variables =
      "FAKE_CUDA_GPUS=1 FAKE_NCCL_VERSION=22809 LD_LIBRARY_PATH='" SHARDRUN_FAKE_LIBRARIES "'";

  const Ended ended = run_packed(folder.path(), "--only nccl", variables);

  INFO(ended.out << ended.err);
  CHECK(ended.code == 0);
  json::object report = read_json(folder.path() / "report.json");
  const json::object& figures = step(report, "nccl").at("figures").as_object();
  CHECK(figures.at("over_nccl").as_array().size() == 4);
  CHECK(figures.at("over_nccl") == figures.at("over_shm"));

  const Ended killed = run_packed(folder.path(), "--only nccl", "FAKE_NCCL_KILL=1:2 " + variables);

  INFO(killed.out << killed.err);
  CHECK(killed.code == 1);
  report = read_json(folder.path() / "report.json");
  CHECK(step(report, "nccl").at("status") == "failed");
  CHECK_THAT(std::string(step(report, "nccl").at("reason").as_string()),
             Contains("over nccl, after 0 steps") && Contains("process 1: exit code -9"));
  CHECK_THAT(text_of(folder.path() / "gpu-run.log"),
             Contains("exit code -9 after ") && Contains("NCCL_HOSTID=r1") && Contains("NCCL_DEBUG=INFO"));
}

TEST_CASE("bench/gpu: a failing step is reported, and the steps after it still run", "[gpu_bench]") {
  if (!has_python()) {
    return;
  }
  const TemporaryFolder folder;
  REQUIRE(pack(folder.path(), "--limit-mib 1000").code == 0);
  write_sanitizer(folder.path(), 3);

  const Ended wrong =
      run_packed(folder.path(), "--only first,kernels,verify-few,sanitizer,ops,nccl",
                 "PATH=\"$PWD/tools:$PATH\" SHARDRUN_CUDA_PRODUCTS=own SHARDRUN_CUDA_DNN=own "
                 "FAKE_CUDA_WITHOUT=layer_norm FAKE_CUDA_GPUS=1 LD_LIBRARY_PATH='" SHARDRUN_FAKE_LIBRARIES "'");

  INFO(wrong.out << wrong.err);
  CHECK(wrong.code == 1);
  json::object report = read_json(folder.path() / "report.json");
  CHECK(report.at("finished").as_bool());
  CHECK(names_of(report) ==
        std::vector<std::string>{"machine", "first", "kernels", "verify-few", "sanitizer", "ops", "nccl"});
  CHECK(step(report, "machine").at("status") == "passed");
  for (const char* name : {"first", "kernels", "verify-few", "nccl"}) {
    INFO(name);
    CHECK(step(report, name).at("status") == "failed");
  }
  CHECK(step(report, "kernels").at("figures").at("failures").at(0).at("op") == "layer_norm");
  CHECK(step(report, "sanitizer").at("status") == "failed");
  CHECK(step(report, "ops").at("status") == "failed");
  CHECK_THAT(std::string(step(report, "sanitizer").at("reason").as_string()), Contains("memcheck: 9 errors"));
  CHECK_THAT(std::string(step(report, "ops").at("reason").as_string()),
             Contains("no kernels of device cuda for these ops of the job: layer_norm"));
  const std::string log = text_of(folder.path() / "gpu-run.log");
  for (const char* cause : {"bin/kernel_checks --json", "FAILED layer_norm: ", "ERROR SUMMARY: 3 errors",
                            "bin/shardrun verify ", "no kernels of device cuda for these ops of the job: layer_norm"}) {
    CHECK_THAT(log, Contains(cause));
  }

  const Ended none = run_packed(folder.path(), "", "FAKE_CUDA_DRIVER=0");

  INFO(none.out << none.err);
  CHECK(none.code == 1);
  report = read_json(folder.path() / "report.json");
  CHECK(report.at("finished").as_bool());
  CHECK(step(report, "machine").at("status") == "failed");
  CHECK_THAT(std::string(step(report, "machine").at("reason").as_string()), Contains("there is no NVIDIA driver"));
  CHECK(names_of(report) == std::vector<std::string>{"machine"});
  CHECK_THAT(text_of(folder.path() / "gpu-run.log"), Contains("bin/shardrun devices --json"));
}

TEST_CASE("bench/gpu judges its measurements", "[gpu_bench]") {
  if (!has_python()) {
    return;
  }
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "judge.py") << R"(
import pathlib, sys, time, types
source = pathlib.Path(sys.argv[1])
sys.path[:0] = [str(source / "bench/gpu"), str(source / "bench")]
sys.dont_write_bytecode = True
import machine, rivals, split_jobs, training

assert training.peak_of("NVIDIA H100 80GB HBM3") == 989 and training.peak_of("NVIDIA H200") == 989
for other in ("NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H200 NVL", "NVIDIA GH200 480GB", ""):
    assert training.peak_of(other) is None, other

refusing = pathlib.Path("refuse")
refusing.write_text("#!/bin/sh\necho no such thing >&2\nexit 2\n")
refusing.chmod(0o755)
case = split_jobs.Case("shm", "dp", "float32")
result = case.run(types.SimpleNamespace(shardrun=refusing.resolve(), without_dnn={}, scratch="."), "job.ini", 20)
assert (result["status"], result["reason"]) == ("failed", "no such thing"), result
try:
    split_jobs.judged([result, {**result, "status": "passed"}], [])
    raise SystemExit("a refused case passes")
except machine.Failed as failed:
    assert "1 of 2 comparisons failed" in str(failed)

runs = iter([{"step_ms": 1}, machine.Failed("gone")])
def run_shardrun(*_):
    each = next(runs)
    if isinstance(each, Exception):
        raise each
    return each
training.run_shardrun = run_shardrun
rival = types.SimpleNamespace(of=lambda _: ({}, "no rival"), options=types.SimpleNamespace(small=False))
rounds, why = training.race(None, rival, types.SimpleNamespace(name="124M"), 1000)
assert rounds == [{"shardrun": {"step_ms": 1}}] and why == "round 2: gone", (rounds, why)

compiling = pathlib.Path("compiling")
compiling.write_text("""#!/bin/sh
case "$2" in *slow*) exec sleep 1000;; esac
echo '{"ready": true, "attention": "fused"}'
exec cat >/dev/null
""")
compiling.chmod(0o755)
options = types.SimpleNamespace(small=True)
has = types.SimpleNamespace(torch={"gpu": False}, torch_lacks=None, scratch=pathlib.Path("."), python=compiling.resolve())
def rivals_of(**jobs):
    made = rivals.Rivals(has, options, {name: types.SimpleNamespace(path=job, batch=1, name=name) for name, job in jobs.items()})
    made.start()
    return made

some = rivals_of(quick="quick.ini", slow="slow.ini", later="quick.ini")
while not some.rivals["quick"]:
    time.sleep(0.01)  # nothing tells when
figures, lines = some.finish(None, options, 1)
assert not some.is_alive() and figures["errors"] == dict.fromkeys(("slow", "later"), rivals.NOT_IN_TIME), figures
ready, why = some.of("quick")
assert why is None and ready[rivals.DEFAULT].process.poll() is None
assert some.of("slow") == some.of("later") == ({}, rivals.NOT_IN_TIME)
some.stop()
assert ready[rivals.DEFAULT].process.poll() is not None

# A race never begins while a model is being compiled.
raced = rivals_of(quick="quick.ini", slow="slow.ini")
raced.of("quick")
assert not raced.is_alive() and raced.of("slow") == ({}, rivals.NOT_IN_TIME)
raced.stop()

none = rivals_of(slow="slow.ini")
try:
    none.finish(None, options, 1)
    raise SystemExit("nothing was compiled, and the step passes")
except machine.Skipped as skipped:
    assert rivals.NOT_IN_TIME in str(skipped)

machine.end_all()
assert machine.run(["sleep", "1000"], 500).code == -9
)";

  const Ended ended = run_script(folder.path(), "exec python3 judge.py '" SHARDRUN_SOURCE "'");

  INFO(ended.out << ended.err);
  CHECK(ended.code == 0);
}

TEST_CASE("bench/gpu/pack refuses a folder that is too large, and one with files of others", "[gpu_bench]") {
  if (!has_python()) {
    return;
  }
  const TemporaryFolder folder;
  const Ended large = pack(folder.path(), "--limit-mib 1");
  CHECK(large.code == 1);
  CHECK_THAT(large.err, Contains("and at most 1 are wanted"));
  const Ended again = pack(folder.path(), "--limit-mib 1000");
  CHECK(again.code == 0);
  const std::string ready = again.out.substr(again.out.find("the first call:\n") + 16);
  const std::string command = ready.substr(0, ready.find('\n'));
  CHECK(command.size() < 2000);
  fs::create_directory(folder.path() / "copies");
  const Ended listed = run_script(folder.path(), "export TMPDIR=\"$PWD/copies\"; " + command + " --list");
  INFO(command << listed.err);
  CHECK(listed.code == 0);
  CHECK_THAT(listed.out, Contains("train-124M"));
  CHECK(fs::exists(folder.path() / "copies/shardrun-gpu-packed/bin/shardrun"));

  fs::remove(folder.path() / "packed/pack.json");
  const Ended others = pack(folder.path());
  CHECK(others.code == 1);
  CHECK_THAT(others.err, Contains("has files of others"));
  CHECK(fs::exists(folder.path() / "packed/bin/shardrun"));
}

TEST_CASE("bench/gpu/pack looks at its folder before it builds", "[gpu_bench]") {
  if (!has_python()) {
    return;
  }
  const TemporaryFolder folder;
  fs::create_directories(folder.path() / "packed/of_others");
  const Ended others = pack(folder.path(), "--build nowhere");
  CHECK(others.code == 1);
  CHECK_THAT(others.err, Contains("has files of others"));
}

TEST_CASE("bench/gpu refuses arguments that it cannot use", "[gpu_bench]") {
  if (!has_python()) {
    return;
  }
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "pack.json") << R"({"commit": ""})";
  for (const char* const words : {"pack packed --jobs 0", "pack packed --limit-mib nan", "pack packed --library none",
                                  "run . --seconds 0", "run . --peak-tflops -1", "run . --out none/report.json",
                                  "run . --python none", "run . --only none", "run none"}) {
    INFO(words);
    const Ended ended = run_script(folder.path(), std::string("exec python3 '" SHARDRUN_SOURCE "/bench/gpu/'") + words);
    CHECK(ended.code == 2);
    CHECK_THAT(ended.err, Contains(": error: ") && !Contains("Traceback"));
  }
}
