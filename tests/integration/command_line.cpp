#include "tests/integration/program.h"
#include "tests/support/catch.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

TEST_CASE("misspelt commands, options and values get an error that suggests the right one", "[program]") {
  const JobFolder job;
  const auto refused = [&](const std::vector<std::string>& words) {
    const Ended ended = run_program(job.path(), words);
    CHECK(ended.code == 2);
    CHECK(ended.out.empty());
    return ended.err;
  };
  CHECK(refused({"pln", "job.ini"}) ==
        "shardrun: 'pln' is neither a command nor a job file (did you mean 'plan'?); shardrun --help lists the "
        "commands\n");
  CHECK(refused({"job.ini", "--jsn"}) ==
        "shardrun: run: unknown option '--jsn' (did you mean '--json'?); shardrun run --help lists the options\n");
  CHECK(refused({"plan"}) == "shardrun: plan: expected JOB.ini; shardrun plan --help lists the options\n");
  CHECK(refused({"plan", "job.ini", "b.ini"}) ==
        "shardrun: plan: did not expect 'b.ini'; shardrun plan --help lists the options\n");
  CHECK_THAT(refused({"plan", "job.ini", "--dump"}), StartsWith("shardrun: plan: ") && Contains("--dump"));
  CHECK(refused({"plan", "job.ini", "--dump", "soup"}) ==
        "shardrun: --dump: expected graph, plan or program, found 'soup'\n");
  CHECK(refused({"generate", "run", "--tokens", "many"}) ==
        "shardrun: --tokens: expected a number from 0 to 1000000000, found 'many'\n");
  CHECK(refused({"generate", "run", "--replace"}) ==
        "shardrun: generate: --replace has no effect without --to: leave it out, or give both; shardrun generate "
        "--help lists the options\n");
  CHECK_THAT(refused({"generate", "run", "--system", "x"}),
             Contains("--system has no effect without --message or --chat"));
  for (const char* option : {"--top-k", "--seed"}) {
    CHECK(refused({"generate", "run", "--temperature", "0", option, "3"}) ==
          std::string("shardrun: ") + option +
              " has no effect with --temperature 0, which always takes the likeliest token: leave out one of them\n");
  }
  CHECK_THAT(refused({"plan", "job.ini", "--all", "--all"}), Contains("--all is given more than once"));
  CHECK_THAT(refused({"help", "jobs"}), Contains("did you mean 'job'?"));
  CHECK_THAT(refused({"help", "shrading"}), Contains("(did you mean 'sharding'?)") && Contains("job, mesh, plugins, "));
}

TEST_CASE("commands and options of other programs get an error that names ours", "[program]") {
  const JobFolder job;
  const auto refused = [&](const std::vector<std::string>& words) {
    const Ended ended = run_program(job.path(), words);
    CHECK(ended.code == 2);
    return ended.err;
  };
  CHECK(refused({"train", "job.ini"}) == "shardrun: 'train' is no command: 'shardrun JOB.ini' runs a job\n");
  for (const auto& [word, command] : {std::pair{"eval", "train.steps=0"},
                                      {"sample", "shardrun generate RUN"},
                                      {"export", "shardrun checkpoint export"},
                                      {"resume", "shardrun JOB.ini --resume"},
                                      {"version", "shardrun --version"}}) {
    CHECK_THAT(refused({word, "job.ini"}), Contains(command));
  }
  CHECK(refused({"job.ini", "--ranks", "2"}) ==
        "shardrun: run: unknown option '--ranks' (a setting of the job file: --set job.ranks=VALUE); shardrun run "
        "--help lists the options\n");
  CHECK_THAT(refused({"job.ini", "--steps=2"}), Contains("--set train.steps=VALUE, or --set iterate.steps=VALUE"));
  CHECK_THAT(refused({"job.ini", "--nproc-per-node", "2"}), Contains("--set job.ranks=VALUE"));
}

TEST_CASE("a missing /proc, working directory or TMPDIR is reported in plain words", "[program]") {
  const JobFolder job;
  const auto refused = [&](const std::string& script) {
    const Ended ended = run_script(job.path(), script);
    INFO(script << ": " << ended.err);
    CHECK(ended.code == 2);
    CHECK_THAT(ended.err, StartsWith("shardrun: ") && !Contains("unexpected"));
    return ended.err;
  };
  CHECK_THAT(refused("mkdir gone && cd gone && rmdir ../gone && \"$0\" ../job.ini"),
             Contains("the working directory cannot be found"));
  CHECK_THAT(refused("TMPDIR=/nowhere \"$0\" verify job.ini --set job.ranks=2 --set job.strategy=dp"),
             Contains("'/nowhere'") && Contains("let TMPDIR name a folder"));
  CHECK_THAT(refused("TMPDIR=/nowhere MASTER_ADDR=127.0.0.1 MASTER_PORT=9 RANK=0 WORLD_SIZE=2 \"$0\" job.ini --set "
                     "job.ranks=2 --set job.strategy=dp"),
             Contains("/nowhere/shardrun-") && Contains("let TMPDIR name a folder"));
  if (run_script(job.path(), "unshare -Urm mount -t tmpfs none /proc").code == 0) {
    CHECK_THAT(refused("unshare -Urm sh -c 'mount -t tmpfs none /proc; exec \"$0\" job.ini' \"$0\""),
               Contains("shardrun needs /proc"));
  } else {
    WARN("skipped: no namespace without /proc here");
  }
}

TEST_CASE("a refusal of a command with --json is JSON, too", "[program]") {
  const JobFolder job;
  for (const std::vector<std::string>& words : {std::vector<std::string>{"job.ini", "--json", "--set", "model.heads=3"},
                                                {"plan", "none.ini", "--json"},
                                                {"verify", "job.ini", "--json", "--set", "model.heads=3"},
                                                {"checkpoint", "list", "none", "--json"}}) {
    const Ended ended = run_program(job.path(), words);
    INFO(words[0] << ": " << ended.out);
    CHECK(ended.code == 2);
    const boost::json::object refusal = boost::json::parse(ended.out).as_object();
    CHECK(refusal.at("status") == "failed");
    CHECK(refusal.at("exit_code") == 2);
    CHECK(ended.err == "shardrun: " + std::string(refusal.at("error").as_string()) + "\n");
  }
}

TEST_CASE("plugins --json has every plugin with its options", "[program]") {
  const TemporaryFolder folder;
  const Ended listed = run_program(folder.path(), {"plugins", "--json"});
  REQUIRE(listed.code == 0);
  bool is_found = false;
  const boost::json::value all = boost::json::parse(listed.out);
  for (const boost::json::value& plugin : all.as_array()) {
    if (plugin.at("kind") != "model" || plugin.at("name") != "mlp") {
      continue;
    }
    is_found = true;
    const boost::json::object& option = plugin.at("options").at(0).as_object();
    CHECK(option.at("type") == "integer");
    CHECK(option.contains("required"));
    CHECK_FALSE(plugin.as_object().contains("error"));
  }
  CHECK(is_found);
}

TEST_CASE("help ops documents the ops, help job the job file", "[program]") {
  const TemporaryFolder folder;
  CHECK_THAT(run_program(folder.path(), {"help", "ops"}).out, Contains("\neinsum\n    result    the sum of a b"));
  CHECK_THAT(run_program(folder.path(), {"help", "ops", "--markdown"}).out, StartsWith("# Ops\n"));
  CHECK_THAT(run_program(folder.path(), {"help", "job"}).out, Contains("\n[train]\n"));
  CHECK_THAT(run_program(folder.path(), {"help", "mesh"}).out, StartsWith("[mesh]\n") && !Contains("[train]"));
}

TEST_CASE("every command that takes a job file finds the plugins of [plugins] path", "[program]") {
  const TemporaryFolder folder;
  write_file(folder / "job.ini", "[plugins]\npath = " SHARDRUN_EXAMPLE_PROGRAMS "\n[model]\nname = diffusion\n");
  const auto said = [&](std::vector<std::string> words, int code = 0) {
    const Ended ended = run_program(folder.path(), words);
    CHECK(ended.code == code);
    return ended.out + ended.err;
  };
  CHECK_THAT(said({"plugins", "job.ini"}),
             Contains("model diffusion ") && Contains("\n    op laplacian: u[y-1, x] + "));
  CHECK_THAT(said({"help", "job", "job.ini"}), Contains("\nname = diffusion    heat on a plane"));
  CHECK_THAT(said({"help", "job"}), !Contains("diffusion"));
  CHECK_THAT(said({"help", "ops", "job.ini"}),
             StartsWith("ops of the model diffusion\n") && Contains("\nlaplacian\n    result    u[y-1, x]") &&
                 Contains("    types     real[2, 3] -> real[2, 3]\n    rule      y[-1..1] x[-1..1] -> y x\n"));
  CHECK_THAT(said({"help", "ops", "job.ini", "--markdown"}),
             StartsWith("# Ops of the model diffusion\n") && Contains("| rule | `y[-1..1] x[-1..1] -> y x` |\n"));

  CHECK_THAT(said({"help", "ops", "job.ini", "--set", "model.name=life"}, 2),
             Contains("the model 'life' brings no ops"));
  CHECK_THAT(said({"help", "ops", "--set", "model.name=life"}, 2), Contains("--set changes a job file: name one"));
  CHECK_THAT(said({"plugins", "--set", "model.name=life"}, 2), Contains("--set changes a job file: name one"));
  CHECK_THAT(said({"help", "job", "job.ini", "--markdown"}, 2), Contains("has no models: leave out the job file"));
  CHECK_THAT(said({"help", "plan", "job.ini"}, 2), Contains("help plan: did not expect 'job.ini'"));

  // The folder of a run contains the run's job; a weights file alone does not.
  said({SHARDRUN_EXAMPLE_JOBS "/programs/spring.ini", "--set", "plugins.path=" SHARDRUN_EXAMPLE_PROGRAMS, "--set",
        "train.steps=1", "--set", "job.output=" + (folder / "out").string()});
  CHECK_THAT(said({"generate", "out"}, 2), Contains("model spring does not predict tokens"));
  CHECK_THAT(said({"generate", "out/weights.safetensors"}, 2), Contains("'spring', which this version does not have"));
}

TEST_CASE("ranks = auto is the launcher's world size, or else the number of cores", "[program]") {
  const JobFolder job;
  const auto ranks = [&](const std::string& before) {
    const Ended ended = run_script(job.path(), before +
                                                   " $0 plan job.ini --json --set job.ranks=auto --set job.strategy=dp "
                                                   "--set job.threads=1");
    CHECK(ended.err.empty());
    std::size_t count = 0;
    const boost::json::value plan = boost::json::parse(ended.out);
    for (const boost::json::value& row : plan.at("ranks").as_array()) {
      count += row.at("members").as_array().size();
    }
    return count;
  };
  CHECK(ranks("env RANK=0 WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=1") == 3);
  CHECK(ranks("env OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=5") == 5);
  CHECK(ranks("taskset -c $(taskset -pc $$ | sed 's/.*: //; s/[,-].*//')") == 1);
}

TEST_CASE("without arguments the usage is shown, and the exit code is an error's", "[program]") {
  const TemporaryFolder folder;
  const Ended none = run_program(folder.path(), {});
  const Ended help = run_program(folder.path(), {"--help"});
  CHECK(none.code == 2);
  CHECK(help.code == 0);
  for (const char* command :
       {"bench [options]", "chat-template FOLDER|FILE.gguf MESSAGES.json", "checkpoint list PATH", "devices [--json]",
        "generate RUN", "help [TOPIC [JOB.ini]]", "plan JOB.ini", "plugins [JOB.ini]", "plugins check FILE",
        "run JOB.ini", "show-sharding JOB.ini TENSOR"}) {
    CHECK_THAT(help.out, Contains(command));
  }
  CHECK_THAT(help.out, Contains("\nexit codes:\n") &&
                           Contains("\n  75      stopped, of a job with checkpoints: the last line says how to go on"));
  CHECK_THAT(run_program(folder.path(), {"--version"}).out, StartsWith("shardrun "));
}

TEST_CASE("devices lists each device with its abilities, and a job selects one by name", "[program]") {
  const JobFolder job;
  const Ended text = run_program(job.path(), {"devices"});
  CHECK_THAT(text.out, StartsWith("cpu (cpu)\n") && Contains("; computes in f32, bf16; bf16 products: ") &&
                           Contains("\nreference (cpu): only for 'shardrun verify' to compare with\n") &&
                           Contains("computes in f64; addressable by the host\n"));
  const boost::json::array devices = boost::json::parse(run_program(job.path(), {"devices", "--json"}).out).as_array();
  REQUIRE(devices.size() == 3);  // cuda is listed even if there is no GPU
  CHECK(devices[0].at("name") == "cpu");
  CHECK(devices[0].at("kind") == "cpu");
  CHECK(devices[0].at("cores").as_int64() >= 1);
  CHECK(devices[0].at("addressable") == true);
  CHECK_THAT(std::string(devices[0].at("bf16_products").as_string()),
             StartsWith("oneDNN with A") || StartsWith("widened to float32"));
  CHECK(devices[1].at("computes") == boost::json::array{"f64"});
  CHECK(devices[1].at("bf16_products").is_null());

  CHECK(job.run({"job.device=cpu", "train.steps=1"}).code == 0);
  const Ended unknown = job.run({"job.device=cpi"});
  CHECK(unknown.code == 2);
  CHECK_THAT(unknown.err, Contains("--set job.device: [job] device: no device is called 'cpi' (did you mean 'cpu'?); "
                                   "there are cpu, reference, cuda"));
  for (const char* command : {"run", "plan", "verify"}) {
    const Ended wide = run_program(job.path(), {command, "job.ini", "--set", "job.device=reference"});
    INFO(command);
    CHECK(wide.code == 2);
    CHECK_THAT(wide.err, Contains("[job] device: reference stores real numbers as f64"));
  }
}

TEST_CASE("every command has help that names its options", "[program]") {
  const TemporaryFolder folder;
  std::vector<std::string> commands;
  std::istringstream usage(run_program(folder.path(), {"--help"}).out);
  for (std::string line; std::getline(usage, line);) {  // "  checkpoint list PATH  the checkpoints of …"
    const std::string_view name =
        std::string_view(line).substr(0, line.find_first_not_of("abcdefghijklmnopqrstuvwxyz- "));
    if (line.starts_with("  ") && !line.starts_with("   ") && name.size() > 3) {
      commands.emplace_back(name.substr(2, name.find_last_not_of(' ') - 1));
    }
  }
  CHECK(commands.size() >= 24);
  for (const std::string& command : commands) {
    INFO(command);
    const Ended ended = run_script(folder.path(), "$0 " + command + " --help");
    CHECK(ended.code == 0);
    CHECK_THAT(ended.out, StartsWith("usage: shardrun " + command));
    CHECK(run_script(folder.path(), "$0 help " + command).out == ended.out);
  }
  const Ended job = run_program(folder.path(), {"help", "job"});
  for (const char* topic : {"learning_rate", "name = gpt", "name = heat1d", "name = mlp", "boundary"}) {
    CHECK_THAT(job.out, Contains(topic));
  }
}

TEST_CASE("run and plan print graph, plan or program with --dump, and start nothing", "[program]") {
  const JobFolder job;
  const auto dumped = [&](const char* command, const char* what) {
    const Ended ended = run_program(job.path(), {command, "job.ini", "--dump", what});
    CHECK(ended.code == 0);
    return ended.out;
  };
  for (const char* command : {"run", "plan"}) {
    CHECK_THAT(dumped(command, "graph"), Contains("layer.1/residual") && Contains("f32[batch 7, seq 16, embed 16]"));
    CHECK_THAT(dumped(command, "plan"),
               StartsWith("strategy single: 1 ranks\n") && Contains("\nfunction micro rows 7\n"));
    CHECK_THAT(dumped(command, "program"),
               StartsWith("rank 0 of 1: arena ") && Contains("program micro rows 7: ") && Contains("(+)="));
    CHECK(dumped(command, "program") == dumped(command, "program"));
  }
  CHECK_FALSE(std::filesystem::exists(job.path() / "run"));
}

TEST_CASE("plan lists memory by its purpose", "[program]") {
  const JobFolder job;
  const Ended ended = run_program(job.path(), {"plan", "job.ini"});
  CHECK(ended.code == 0);
  for (const char* line :
       {"model gpt, strategy single, 1 rank, 1 thread each\n", "\noptimizer ", "\npeak ", "micro, 7 rows"}) {
    CHECK_THAT(ended.out, Contains(line));
  }
}

TEST_CASE("plugins beside the program are found without help", "[program]") {
  const TemporaryFolder folder;
  const Ended ended = run_program(folder.path(), {"plugins"});
  CHECK(ended.code == 0);
  CHECK_THAT(ended.out, Contains("strategy single "));
}

TEST_CASE("a third party's file is checked, case by case", "[program]") {
  const TemporaryFolder folder;
  const std::string sound = SHARDRUN_OUTSIDE_TRANSPORTS "/shardrun_transport_sockets.so";

  const Ended strategy =
      run_program(folder.path(), {"plugins", "check", SHARDRUN_FAULTY_STRATEGIES "/shardrun_strategy_faulty_sound.so"});
  CHECK(strategy.code == 0);
  CHECK_THAT(strategy.out, StartsWith("strategy faulty_sound 1.0 (ABI 1.9) /") &&
                               Contains("  ok     gpt over 8 ranks\n") && Catch::Matchers::EndsWith("\nall is well\n"));

  const Ended model_cases =
      run_program(folder.path(), {"plugins", "check", SHARDRUN_PLUGINS "/shardrun_model_heat1d.so", "--case", "opening",
                                  "--case", "strategies split"});  // two worlds: of one rank, and of several
  CHECK_THAT(model_cases.out, Contains(": 2 cases\n"));
  CHECK(model_cases.out.find("  ok     the end of a world") == std::string::npos);
  const Ended transport = run_program(folder.path(), {"plugins", "check", sound, "--case", "barrier", "--json"});
  CHECK(transport.code == 0);
  CHECK_THAT(transport.err, Contains("  ok     a barrier holds\n"));
  const boost::json::object summary = boost::json::parse(transport.out).as_object();
  CHECK(summary.at("file").as_string() == sound);
  CHECK(summary.at("kind") == "transport");
  CHECK(summary.at("name") == "sockets");
  CHECK(summary.at("passed") == true);
  CHECK(summary.at("problems") == 0);
  CHECK(summary.at("cases").as_array().at(0).as_object().at("name") == "barrier");

  const Ended model = run_program(folder.path(), {"plugins", "check", SHARDRUN_PLUGINS "/shardrun_model_heat1d.so",
                                                  "--case", "gradient of the loss", "--json"});
  CHECK_THAT(model.err,
             Contains("  ok     the gradient of the loss\n         nothing to check: the model has no loss\n"));
  const boost::json::object checked = boost::json::parse(model.out).as_object();
  CHECK(checked.at("cases").as_array().at(0).as_object().at("notes") ==
        boost::json::array{"nothing to check: the model has no loss"});

  const Ended list = run_program(folder.path(), {"plugins", "check", sound, "--list", "--case", "death"});
  CHECK(list.code == 0);
  CHECK_THAT(list.out, StartsWith("the death of a rank\n") && !Contains("barrier"));
}

TEST_CASE("plugins check reports a rule that a plugin breaks, and survives its crash", "[program]") {
  const TemporaryFolder folder;
  const Ended ended = run_program(
      folder.path(), {"plugins", "check", SHARDRUN_FAULTY_STRATEGIES "/shardrun_strategy_faulty_crashing.so", "--json",
                      "--case", "mlp over"});
  CHECK(ended.code == 1);
  CHECK_THAT(ended.err, Contains("  FAILED mlp over 3 ranks\n         ranks 0, 1: was ended by signal 6") &&
                            Contains("  ok     mlp over 8 ranks\n") && Contains("\n1 problem\n"));
  const boost::json::object summary = boost::json::parse(ended.out).as_object();
  CHECK(summary.at("passed") == false);
  CHECK(summary.at("problems") == 1);
}

TEST_CASE("a file that is not a plugin is refused before any of it runs", "[program]") {
  const TemporaryFolder folder;
  const auto refused = [&](const std::vector<std::string>& words) {
    std::vector<std::string> all = {"plugins", "check"};
    all.insert(all.end(), words.begin(), words.end());
    const Ended ended = run_program(folder.path(), all);
    CHECK(ended.code == 2);
    CHECK(ended.out.empty());
    return ended.err;
  };
  const std::string sound = SHARDRUN_OUTSIDE_STRATEGIES "/shardrun_strategy_grid.so";
  write_file(folder / "shardrun_strategy_text.so", "no library");
  std::filesystem::copy_file(sound, folder / "shardrun_strategy_other.so");
  std::filesystem::copy_file(sound, folder / "shardrun_strategy_grid.so");
  std::filesystem::permissions(folder / "shardrun_strategy_grid.so", std::filesystem::perms::others_write,
                               std::filesystem::perm_options::add);

  CHECK_THAT(refused({"job.ini"}), Contains("is not named like a plugin: the name is shardrun_KIND_NAME.so"));
  CHECK_THAT(refused({"shardrun_strategy_none.so"}), Contains("cannot look at ") && Contains("No such file"));
  CHECK_THAT(refused({"shardrun_strategy_text.so"}), Contains("shardrun_strategy_text.so"));
  CHECK_THAT(refused({"shardrun_strategy_other.so"}), Contains("says that it is the strategy 'grid'"));
  CHECK_THAT(refused({"shardrun_strategy_grid.so"}), Contains("is not trusted: everyone may write to it"));
  CHECK_THAT(refused({sound, "--case", "soup"}), Contains("no case for a strategy has that in its name"));
  CHECK_THAT(refused({}), Contains("plugins check: expected FILE"));
  CHECK_THAT(refused({sound, "--jsn"}), Contains("did you mean '--json'?"));
  CHECK_THAT(refused({sound, "--set", "chunk=1"}),
             Contains("--set chunk=1: only a transport, a model or an engine has options here"));
  const std::string mlp = SHARDRUN_PLUGINS "/shardrun_model_mlp.so";
  CHECK_THAT(refused({mlp, "--set", "hidden"}), Contains("--set hidden: expected KEY=VALUE"));
  CHECK_THAT(refused({mlp, "--set", "hiden=4"}),
             Contains("--set hiden=4: there is no option 'hiden' (did you mean 'hidden'?)"));
  CHECK_THAT(refused({mlp, "--set", "hidden=0"}), Contains("--set hidden=0: ") && Contains("at least 1"));

  const std::string gloo = SHARDRUN_PLUGINS "/shardrun_transport_gloo.so";
  CHECK_THAT(refused({gloo, "--set", "chunk"}), Contains("--set chunk: expected KEY=VALUE"));
  CHECK_THAT(refused({gloo, "--set", "chnk=1"}), Contains("transport gloo: there is no option 'chnk'"));
  CHECK_THAT(refused({gloo, "--set", "chunk=much"}), Contains("--set chunk=much: transport gloo: "));
  CHECK_THAT(refused({gloo, "--set", "chunk=0"}),
             Contains("--set chunk=0: transport gloo: ") && Contains("at least 8 and at most"));
  CHECK_THAT(refused({gloo, "--set", "chunk=0", "--list"}), Contains("--set chunk=0: transport gloo: "));
  CHECK_THAT(refused({gloo, "--set", "protect=encrypt"}), Contains("'trusted'") && Contains("transport tcp encrypts"));
  CHECK_THAT(refused({gloo, "--set", "shm.chunk=1"}), Contains("transport gloo opens no transport 'shm'"));
  const std::string chaos = SHARDRUN_PLUGINS "/shardrun_transport_chaos.so";
  CHECK_THAT(refused({chaos, "--set", "over=gloo", "--set", "gloo.chnk=1"}),
             Contains("transport gloo: there is no option 'chnk'"));
  CHECK_THAT(refused({chaos, "--set", "over=pigeon"}), Contains("there is no transport plugin 'pigeon'"));
}
