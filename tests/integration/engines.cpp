#include <algorithm>
#include <cmath>

#include "tests/integration/engine_folder.h"
#include "tests/support/catch.h"
#include "tests/support/depth.h"
#include "tests/support/mpirun.h"

// Engines: the examples against the model of the same network, and an engine that makes mistakes.

using Catch::Matchers::Contains;
using namespace shardrun::test;

namespace {

void require_close(const std::vector<double>& found, const std::vector<double>& expected) {
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CHECK(std::abs(found[i] / expected[i] - 1) < 2e-6);
  }
}

void verify(const EngineFolder& folder, const std::vector<std::string>& settings) {
  const Ended ended = run_program(folder.path(), with_settings({"verify", "engine.ini"}, settings));
  INFO(settings.front() << ": " << ended.out << ended.err);
  REQUIRE(ended.code == 0);
}

std::vector<std::string> mistaken(const std::string& mistake, const std::string& timeout = "20") {
  return {"engine.mistake=" + mistake, "job.ranks=2", "job.timeout=" + timeout};
}

/// engine.ini without the options of its engine.
void write_probing(const EngineFolder& folder) {
  write_file(folder.path() / "engine.ini",
             "[job]\nengine = probing\noutput = engine\n[plugins]\npath = " + std::string(SHARDRUN_EXAMPLE_ENGINES) +
                 "\n[data]\narrays = x.npy, y.npy\nbatch = 7\n[train]\nsteps = 2\n");
}

}  // namespace

TEST_CASE("each engine equals the model of its network under verify, over each transport", "[engines]") {
  const EngineFolder folder;
  const auto [engine, number] = GENERATE(table<std::string, std::size_t>(
      {{"data_parallel", 0}, {"tensor_parallel", 1}, {"zero3", 2}, {"pipeline", 0}, {"ring", 1}}));
  verify(folder, {"job.engine=" + engine, "job.ranks=1"});
  std::size_t turn = number;
  for (const std::string& transport : installed("transport")) {
    constexpr auto every = depth<std::size_t>(1, 3, 3);  // one number of ranks each, in turn
    for (std::size_t more = turn++ % every; more < 3; more += every) {
      verify(folder, {"job.engine=" + engine, "job.transport=" + transport, "job.ranks=" + std::to_string(2 + more)});
    }
  }
  // Labels, more ranks than rows in a microbatch, another optimizer.
  verify(folder, {"job.engine=" + engine, "job.ranks=3", "data.microbatches=3", "train.optimizer=sgd",
                  "train.momentum=0.9", "train.loss=cross_entropy", "model.loss=cross_entropy",
                  "data.arrays=" + (folder.path() / "x.npy").string() + "," + (folder.path() / "labels.npy").string()});
}

TEST_CASE("an engine on one device equals the model under verify, and is refused on two", "[engines]") {
  const EngineFolder folder;
  verify(folder, {"job.engine=unsharded"});
  // The model's loss is per sample, whatever the number of values in a sample.
  write_file(folder.path() / "three.npy", array_file("<f4", "(40, 3)", numbers(samples * 3)));
  verify(folder, {"job.engine=unsharded", "train.loss=squared_error",
                  "data.arrays=" + (folder.path() / "x.npy").string() + "," + (folder.path() / "three.npy").string()});
  const Ended refused = folder.run("engine", {"job.engine=unsharded", "job.ranks=2"});
  CHECK(refused.code == 2);
  CHECK(refused.err.find("it runs on one device: set [job] ranks = 1") != std::string::npos);
}

TEST_CASE("verify of an engine begins with the job's checkpoint", "[engines]") {
  const EngineFolder folder;
  REQUIRE(folder.run("model", {"job.seed=7"}).code == 0);
  const std::string weights = "job.checkpoint=" + (folder.path() / "model/weights.safetensors").string();
  for (const std::string engine : {"zero3", "pipeline"}) {
    verify(folder, {"job.engine=" + engine, "job.ranks=3", weights});
  }
}

TEST_CASE("verify names the tensor that an engine gets wrong", "[engines]") {
  const EngineFolder folder;
  const auto [fault, line] = GENERATE(values<std::pair<std::string, std::string>>({
      {"gradient", "layer_0/weights"},
      {"predictions", "loss"},
      {"load", "layer_1/weights"},
  }));
  REQUIRE(folder.run("model", {"job.seed=7"}).code == 0);
  const Ended ended = run_program(
      folder.path(), with_settings({"verify", "engine.ini"},
                                   {"job.engine=faulty", "engine.fault=" + fault, "job.ranks=2",
                                    "job.checkpoint=" + (folder.path() / "model/weights.safetensors").string()}));
  INFO(fault << ": " << ended.out << ended.err);
  CHECK(ended.code == 1);
  const std::size_t found = ended.out.find(line);
  CHECK((found != std::string::npos && ended.out.find("FAILED") != std::string::npos));
}

TEST_CASE("verify of an engine needs a model that has the engine's parameters", "[engines]") {
  const EngineFolder folder;
  const auto refused = [&](const std::vector<std::string>& settings) {
    const Ended ended = run_program(folder.path(), with_settings({"verify", "engine.ini"}, settings));
    CHECK(ended.code == 2);
    return ended.err;
  };
  CHECK(refused({"model.hidden=4"}).find("'layer_0/weights' is [6, 4] in the model and [6, 5] in the engine") !=
        std::string::npos);
  write_probing(folder);
  CHECK(refused({}).find("an engine's training is compared with a model's: name it in the section [model]") !=
        std::string::npos);
}

TEST_CASE("an engine loads weights of a model, and weights that it saved", "[engines]") {
  const EngineFolder folder;
  REQUIRE(folder.run("model", {"job.seed=7"}).code == 0);
  const std::string engine = GENERATE("unsharded", "data_parallel", "tensor_parallel", "zero3", "pipeline", "ring");
  const std::string ranks = engine == "unsharded" ? "1" : "3";
  const auto loaded = [&](const std::string& of) {
    const Ended ended = folder.run(
        "engine", {"job.engine=" + engine, "job.ranks=" + ranks, "train.steps=1", "train.learning_rate=1e-30",
                   "train.weight_decay=0", "job.checkpoint=" + (folder.path() / of / "weights.safetensors").string()});
    INFO(ended.err);
    REQUIRE(ended.code == 0);
    std::filesystem::copy_file(folder.path() / "engine/weights.safetensors", folder.path() / "copy.safetensors",
                               std::filesystem::copy_options::overwrite_existing);
    return read_file(folder.path() / "engine/weights.safetensors");
  };
  const std::string of_model = read_file(folder.path() / "model/weights.safetensors");
  const std::string first = loaded("model");
  CHECK(first.substr(first.size() - 160) == of_model.substr(of_model.size() - 160));  // 6 · 5 + 5 · 2 values
  std::filesystem::create_directory(folder.path() / "kept");
  std::filesystem::copy_file(folder.path() / "copy.safetensors", folder.path() / "kept/weights.safetensors");
  CHECK(loaded("kept") == first);
}

TEST_CASE("a tensor that a checkpoint lacks is named", "[engines]") {
  const EngineFolder folder;
  REQUIRE(folder.run("engine").code == 0);
  write_probing(folder);
  write_file(folder.path() / "weights.safetensors", read_file(folder.path() / "engine/weights.safetensors"));
  const Ended ended = folder.run("engine", {"job.checkpoint=" + (folder.path() / "weights.safetensors").string(),
                                            "job.ranks=2", "job.output=probing"});
  INFO(ended.err);
  CHECK(ended.code == 1);
  CHECK(ended.err.find("load_checkpoint: there is no array 'w'; there are: layer_0/weights, layer_1/weights") !=
        std::string::npos);
}

TEST_CASE("an engine over mpi gives the results of the model", "[engines]") {
  if (!has_mpirun()) {
    return;
  }
  const EngineFolder folder;
  REQUIRE(folder.run("model").code == 0);
  for (const std::string engine : {"data_parallel", "tensor_parallel", "zero3", "pipeline", "ring"}) {
    for (const std::string ranks : {"1", "4"}) {
      const Ended ended =
          run_script(folder.path(), mpirun + " -n " + ranks + " \"$0\" engine.ini --set job.engine=" + engine +
                                        " --set job.transport=mpi --set job.ranks=" + ranks);
      INFO(engine << " on " << ranks << ": " << ended.err);
      REQUIRE(ended.code == 0);
      require_close(folder.results("engine"), folder.results("model"));
    }
  }
}

TEST_CASE("every collective of an engine has the right result, on uneven and empty arrays too", "[engines]") {
  const EngineFolder folder;
  write_probing(folder);
  for (const std::string& transport : installed("transport")) {
    for (const char* const ranks : {"1", "2", "3", "4"}) {
      const Ended ended = folder.run("engine", {"job.transport=" + transport, std::string("job.ranks=") + ranks});
      INFO(ranks << " over " << transport << ": " << ended.err);
      CHECK(ended.code == 0);
    }
  }
}

TEST_CASE("an engine's mistake is named", "[engines]") {
  struct Mistake {
    std::string mistake;
    std::string message;
  };
  const auto [mistake, message] = GENERATE(values<Mistake>({
      {"axis", "all_gather: there is no axis 2 in an array [2, 2], whose axes are counted from 0"},
      {"shape", "all_reduce: the array of rank 1 is [2, 3], and that of rank 0 [1, 3]: they have to be equal"},
      {"other extents",
       "all_gather: the array of rank 1 is [2, 2], and that of rank 0 [2, 1]: they have to be equal except along axis "
       "0"},
      {"order", "rank 1 calls barrier, and rank 0 calls all_reduce: all ranks call the collectives in one order"},
      {"op", "the op is 'mean', expected sum, product, min or max"},
      {"ops", "rank 1 calls all_reduce with the op max, and rank 0 with sum: all ranks call the same"},
      {"unreceived",
       "the engine ends with 1 message to rank 1 that it has not received: rank 0 has sent 1, the last an array [2, 3] "
       "of f32"},
      {"element", "rank 1 calls all_reduce of i32 elements, and rank 0 of f32: all ranks call the same"},
      {"rank", "send: there is no rank 7: the job has 2"},
      {"itself", "cannot exchange messages with itself"},
      {"root", "broadcast: there is no rank -1 to be the root: the job has 2"},
      {"message", "rank 0 sent an array [2, 3] of f32, and it is received into one [3, 2] of f32"},
      {"swallow", "all_gather: there is no axis 5 in an array [2]"},
      {"deaf", "for which it has not waited; the first is one to rank"},
      {"throw", "engine 'probing', forward: it has had enough"},
      {"again", "all_gather: there is no axis 5 in an array [2]"},
      {"first values", "engine 'probing': ranks 0 and 1 declare 'differs' with different first values or weight decay"},
      {"predictions", "engine 'probing', forward: its predictions: they are [1, 1], expected ["},
      {"doubles", "engine 'probing', forward: its predictions: they are f64, expected f32"},
      {"gradient", "engine 'probing', backward: backward returned no gradient of 'w'"},
      {"copies", "the copies of parameter w differ"},
      {"gap", "the ranks' parts of 'cut' have 2 of its 4 elements"},
      {"refuse", "--set job.ranks: engine 'probing': this job is not for it"},
  }));
  const EngineFolder folder;
  write_probing(folder);
  const Ended ended = folder.run("engine", mistaken(mistake));
  INFO(mistake << ": " << ended.err);
  CHECK((ended.code == 1 || ended.code == 2));
  CHECK(ended.err.find(message) != std::string::npos);
}

TEST_CASE("a rank that dies while another waits for its message is named, long before the deadline", "[engines]") {
  const EngineFolder folder;
  write_probing(folder);
  for (const std::string& transport : installed("transport")) {
    std::vector<std::string> settings = mistaken("killed", "300");
    settings.push_back("job.transport=" + transport);
    const Ended ended = folder.run("engine", settings);
    INFO(transport << ": " << ended.err);
    CHECK(ended.code == 1);
    CHECK(ended.err.find("rank 1") != std::string::npos);
    CHECK(ended.err.find("SIGKILL") != std::string::npos);
  }
}

TEST_CASE("an engine that fails may free arrays that messages still use", "[engines]") {
  const EngineFolder folder;
  write_probing(folder);
  for (const std::string& transport : installed("transport")) {
    std::vector<std::string> settings = mistaken("abandon");
    settings.push_back("job.transport=" + transport);
    const Ended ended = folder.run("engine", settings);
    INFO(transport << ": " << ended.err);
    CHECK(ended.code == 1);
    CHECK(ended.err.find("engine 'probing', forward: it has had enough") != std::string::npos);
    CHECK(ended.err.find("Sanitizer") == std::string::npos);
  }
}

TEST_CASE("a message that never comes fails the job at its deadline, and both waits are named", "[engines]") {
  const EngineFolder folder;
  write_probing(folder);
  const std::string mistake = GENERATE("stuck", "polling");
  const Ended ended = folder.run("engine", mistaken(mistake, "3"));
  INFO(ended.err);
  CHECK(ended.code == 1);
  CHECK_THAT(ended.err, Contains("rank 1"));
  if (mistake == "stuck") {
    // The message depends on which rank reports before the launcher ends all of them.
    CHECK_THAT(ended.err, Contains("wait for each other") || Contains("rank 1 was at: step 1"));
    CHECK_THAT(ended.err, Contains("message 1 of rank 1 to rank 0 has not come; every receive needs a send") &&
                              Contains("header of receive from rank 1 (operation 1 over 1 to 0)"));
  }
}

TEST_CASE("settings without an effect on an engine are refused", "[engines]") {
  const EngineFolder folder;
  struct Refusal {
    std::string setting;
    std::string message;
  };
  const auto [setting, message] = GENERATE(values<Refusal>({
      {"job.strategy=dp", "[job] strategy has no effect with [job] engine = data_parallel"},
      {"mesh.data=1", "[mesh] has no effect with [job] engine = data_parallel"},
      {"train.remat=layer", "[train] remat has no effect with [job] engine = data_parallel"},
      {"train.precision=mixed", "[train] precision has no effect with [job] engine = data_parallel"},
      {"train.loss=cross_entropy", "[train] loss = cross_entropy needs integer labels"},
      {"job.engine=nobody", "there is no engine"},
      {"engine.width=3", "width"},
  }));
  const Ended ended = folder.run("engine", {setting});
  INFO(setting << ": " << ended.err);
  CHECK(ended.code == 2);
  CHECK(ended.err.find(message) != std::string::npos);
}

TEST_CASE("an engine is trained on arrays", "[engines]") {
  const EngineFolder folder;
  write_file(folder.path() / "bare.ini",
             "[job]\nengine = data_parallel\n[plugins]\npath = " + std::string(SHARDRUN_EXAMPLE_ENGINES) +
                 "\n[engine]\nhidden = 5\n[train]\nsteps = 1\n");
  const Ended ended = folder.run("bare");
  CHECK(ended.code == 2);
  CHECK(ended.err.find("an engine is trained on arrays: set [data] arrays") != std::string::npos);
}

TEST_CASE("show-sharding shows the parts that an engine's ranks declare", "[engines]") {
  const EngineFolder folder;
  const auto shown = [&](const std::string& engine) {
    const Ended ended = run_program(folder.path(), with_settings({"show-sharding", "engine.ini", "*weights", "--json"},
                                                                 {"job.engine=" + engine, "job.ranks=2"}));
    INFO(ended.err);
    REQUIRE(ended.code == 0);
    const boost::json::value all = boost::json::parse(ended.out);
    std::string text;
    for (const boost::json::value& tensor : all.at("tensors").as_array()) {
      text += std::string(tensor.at("name").as_string()) + boost::json::serialize(tensor.at("shape"));
      for (const boost::json::value& rank : tensor.at("ranks").as_array()) {
        text += boost::json::serialize(rank.at("ranges"));
      }
    }
    return text;
  };
  CHECK(shown("data_parallel") ==
        "layer_0/weights[6,5][[0,6],[0,5]][[0,6],[0,5]]layer_1/weights[5,2][[0,5],[0,2]][[0,5],[0,2]]");
  CHECK(shown("tensor_parallel") ==
        "layer_0/weights[6,5][[0,6],[0,3]][[0,6],[3,5]]layer_1/weights[5,2][[0,3],[0,2]][[3,5],[0,2]]");
  const Ended text = run_program(folder.path(), {"show-sharding", "engine.ini", "layer_0/weights", "--set",
                                                 "job.engine=tensor_parallel", "--set", "job.ranks=2"});
  INFO(text.out << text.err);
  CHECK_THAT(text.out, Contains("parameter f32[dim0 6, dim1 5]") && Contains("0:6, 3:5"));
}

TEST_CASE("weights of another size are refused by the name of the first tensor that differs", "[engines]") {
  const EngineFolder folder;
  REQUIRE(folder.run("model").code == 0);
  const Ended ended = folder.run("engine", {"engine.hidden=4", "job.checkpoint=model/weights.safetensors"});
  INFO(ended.err);
  CHECK(ended.code == 1);
  CHECK_THAT(ended.err, Contains("has layer_0/weights [6, 5], and the engine declares it as [6, 4]"));
  const Ended of_folder = folder.run("engine", {"job.checkpoint=model"});
  CHECK(of_folder.code == 2);
  CHECK_THAT(of_folder.err, Contains("[job] checkpoint: cannot read '") && Contains("it is a folder"));
}

TEST_CASE("settings of engines need an engine, and some commands a model", "[engines]") {
  const EngineFolder folder;
  CHECK(folder.run("model", {"engine.hidden=3"}).err.find("[engine] has no effect without [job] engine") !=
        std::string::npos);
  CHECK(folder.run("model", {"train.loss=mse"}).err.find("[train] loss has no effect without [job] engine") !=
        std::string::npos);
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"plan", "engine.ini", "--dump", "graph"}, {"run", "engine.ini", "--dump", "plan"}}) {
    const Ended ended = run_program(folder.path(), words);
    INFO(words[0] << ": " << ended.err);
    CHECK(ended.code == 2);
    CHECK(ended.err.find("[job] engine = data_parallel") != std::string::npos);
  }
}

namespace {

/// A folder with heat on a line as an engine, heat.ini, and as a model, model.ini.
class HeatFolder {
 public:
  HeatFolder() {
    const std::string iterate = "[iterate]\nsteps = 12\nsave_every = 5\n";
    write_file(path() / "heat.ini", "[job]\nengine = heat\ntask = iterate\noutput = engine\n[plugins]\npath = " +
                                        std::string(SHARDRUN_EXAMPLE_ENGINES) + "\n[engine]\ncells = 7\n" + iterate);
    write_file(
        path() / "model.ini",
        "[job]\ntask = iterate\noutput = model\n[model]\nname = heat1d\ncells = 7\nboundary = fixed\n" + iterate);
  }
  [[nodiscard]] const std::filesystem::path& path() const { return folder_.path(); }
  [[nodiscard]] Ended run(const std::string& job, const std::vector<std::string>& settings = {},
                          std::vector<std::string> words = {}) const {
    words.insert(words.begin(), job + ".ini");
    return run_program(path(), with_settings(std::move(words), settings));
  }
  /// The temperatures of a file, the last of its bytes.
  [[nodiscard]] std::string temperatures(const std::string& file) const {
    const std::string bytes = read_file(path() / file);
    return bytes.size() < 28 ? bytes : bytes.substr(bytes.size() - 28);
  }

 private:
  TemporaryFolder folder_;
};

}  // namespace

TEST_CASE("an iterated engine has the bits of the model, on any number of ranks and over each transport", "[engines]") {
  const HeatFolder folder;
  REQUIRE(folder.run("model").code == 0);
  const std::vector<std::string> transports = installed("transport");
  for (const int ranks : {1, 2, 3, 9}) {
    const std::string& transport = transports[static_cast<std::size_t>(ranks) % transports.size()];
    const Ended ended =
        folder.run("heat", {"job.ranks=" + std::to_string(ranks), "job.transport=" + transport}, {"--replace"});
    INFO(ranks << " ranks over " << transport << ": " << ended.err);
    REQUIRE(ended.code == 0);
    for (const std::string file : {"state-000005.safetensors", "state-000010.safetensors", "state.safetensors"}) {
      CHECK((folder.temperatures("engine/" + file) == folder.temperatures("model/" + file)));
    }
  }
}

TEST_CASE("an iterated engine's states are drawn and gathered, and data and unknown states refused", "[engines]") {
  const HeatFolder folder;
  const Ended ended = folder.run("heat", {"job.ranks=3", "iterate.pictures=temperature"});
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  for (const std::string file : {"temperature-000005.png", "temperature.png", "temperature.gif"}) {
    CHECK(std::filesystem::exists(folder.path() / "engine/pictures" / file));
  }
  CHECK(run_program(folder.path(), {"gather", "engine", "temperature", "--to", "t.npy"}).code == 0);
  CHECK((folder.temperatures("t.npy") == folder.temperatures("engine/state.safetensors")));
  const Ended unknown = folder.run("heat", {"iterate.pictures=pressure"});
  CHECK(unknown.code == 2);
  CHECK(unknown.err.find("engine heat has no field or output 'pressure'") != std::string::npos);
  const Ended weights = folder.run("heat", {"job.checkpoint=t.npy"});
  CHECK(weights.code == 2);
  CHECK(weights.err.find("[job] checkpoint has no effect on an engine that is iterated") != std::string::npos);
  const Ended data = folder.run("heat", {"data.arrays=x.npy,y.npy"});
  CHECK(data.code == 2);
  CHECK(data.err.find("[data] has no effect on an engine that is iterated") != std::string::npos);
}

TEST_CASE("an iterated engine goes on from its checkpoint on any number of ranks, and not as another engine",
          "[engines]") {
  const HeatFolder folder;
  REQUIRE(folder.run("model").code == 0);
  const std::vector<std::string> saving = {"checkpoint.every=4", "job.ranks=3"};
  REQUIRE(folder.run("heat", saving).code == 0);
  for (const std::string ranks : {"1", "2", "4"}) {
    const Ended ended = folder.run("heat", {"job.output=later" + ranks, "job.ranks=" + ranks},
                                   {"--resume=engine/checkpoints/step-000008"});
    INFO(ranks << ": " << ended.out << ended.err);
    REQUIRE(ended.code == 0);
    CHECK(ended.out.find("goes on after step 8") != std::string::npos);
    CHECK((folder.temperatures("later" + ranks + "/state.safetensors") ==
           folder.temperatures("model/state.safetensors")));
  }
  const Ended other =
      folder.run("heat", {"job.output=other", "engine.cells=8"}, {"--resume=engine/checkpoints/step-000008"});
  CHECK(other.code == 2);
  CHECK(other.err.find("saved with the model 'cells = 7', and this job has 'cells = 8'") != std::string::npos);
}

TEST_CASE("plan of an engine tells what its ranks hold, and the memory that a run has", "[engines]") {
  const HeatFolder folder;
  const std::vector<std::string> settings = {"job.ranks=2"};
  const Ended text = run_program(folder.path(), with_settings({"plan", "heat.ini"}, settings));
  INFO(text.err);
  REQUIRE(text.code == 0);
  CHECK(text.out.find("rank 0: [4] at [0]") != std::string::npos);
  CHECK(text.out.find("rank 1: [3] at [4]") != std::string::npos);
  const Ended planned = run_program(folder.path(), with_settings({"plan", "heat.ini", "--json"}, settings));
  REQUIRE(folder.run("heat", settings).code == 0);
  const boost::json::object summary = boost::json::parse(read_file(folder.path() / "engine/summary.json")).as_object();
  const boost::json::value plan = boost::json::parse(planned.out);
  CHECK(plan.at("disk").at("result_bytes") == std::filesystem::file_size(folder.path() / "engine/state.safetensors"));
  CHECK_FALSE(plan.as_object().contains("beginning"));
  const Ended resumed = run_program(folder.path(), with_settings({"plan", "heat.ini", "--json", "--resume"}, settings));
  INFO(resumed.err);
  CHECK(boost::json::parse(resumed.out).at("beginning").at("how") == "refused");  // it would replace the results
  for (const boost::json::value& alike : plan.at("ranks").as_array()) {
    for (const boost::json::value& member : alike.at("members").as_array()) {
      CHECK(summary.at("ranks").at(member.to_number<std::size_t>()).at("peak_bytes") == alike.at("bytes").at("peak"));
    }
  }
}

TEST_CASE("an engine without steps does not iterate, and one with steps alone is not trained", "[engines]") {
  const EngineFolder folder;
  write_file(folder.path() / "engine.ini", "[job]\nengine = probing\ntask = iterate\n[plugins]\npath = " +
                                               std::string(SHARDRUN_EXAMPLE_ENGINES) + "\n[iterate]\nsteps = 2\n");
  const Ended none = folder.run("engine");
  CHECK(none.code == 2);
  CHECK(none.err.find("engine 'probing' has no steps") != std::string::npos);
  write_file(folder.path() / "engine.ini",
             "[job]\nengine = heat\noutput = engine\n[plugins]\npath = " + std::string(SHARDRUN_EXAMPLE_ENGINES) +
                 "\n[engine]\ncells = 5\n[data]\narrays = x.npy, y.npy\nbatch = 7\n[train]\nsteps = 2\n");
  const Ended trained = folder.run("engine");
  CHECK(trained.code == 2);
  CHECK(trained.err.find("engine 'heat' iterates alone") != std::string::npos);
}
