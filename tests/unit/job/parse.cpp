#include <string>

#include "tests/unit/job/support.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Contains;

TEST_CASE("a minimal job has the documented defaults", "[job]") {
  const job::Job job = parse(minimal);

  CHECK(job.ranks == 1);
  CHECK(job.strategy.name == "single");
  CHECK(job.seed == 1337);
  CHECK(job.threads == 0);
  CHECK(job.task == job::Task::train);
  CHECK(job.mesh.empty());
  CHECK(job.plugins.path.empty());
  CHECK(job.data.text.empty());
  CHECK(job.data.tokens.empty());
  CHECK(job.data.arrays.empty());
  CHECK(job.data.tokenizer == "char");
  CHECK(job.data.split == 0.9);
  CHECK(job.data.batch == 12);
  CHECK(job.data.microbatches == 1);
  CHECK(job.data.eval_batch == 0);
  CHECK(job.train.steps == 10);
  CHECK(job.train.optimizer == job::Optimizer::adamw);
  CHECK(job.train.learning_rate == 1e-3);
  CHECK(job.train.min_learning_rate == 0);
  CHECK(job.train.schedule == job::Schedule::cosine);
  CHECK(job.train.warmup == 0);
  CHECK(job.train.weight_decay == 0);
  CHECK(job.train.beta1 == 0.9);
  CHECK(job.train.beta2 == 0.999);
  CHECK(job.train.epsilon == 1e-8);
  CHECK(job.train.momentum == 0);
  CHECK(job.train.clip == 0);
  CHECK(job.train.eval_every == 0);
  CHECK(job.train.sample == 0);
  CHECK(job.train.log_every == 0);
}

TEST_CASE("every key reaches its field", "[job]") {
  const job::Job job = parse(R"([job]
ranks = 4
strategy = split
seed = 18446744073709551615
threads = 3
output = /out
task = train
[mesh]            ; product = ranks
pipe  = 2
data  = 2
[plugins]
path = /a:/b\:c
[model]
name = toy
layers = 4
width = 16
vocab = 65
scale = 2.5
bias = off
note = "a ; note"
weights = /w.bin
activation = relu
tags = x, y
stream = 9
[data]
text = /corpus.txt
tokenizer = byte
split = 0.5
batch = 8
microbatches = 4
eval_batch = 2
[train]
steps = 2000
optimizer = adamw
learning_rate = 1e-2
min_learning_rate = 1e-4
schedule = linear
warmup = 100
weight_decay = 0.1
beta1 = 0.8
beta2 = 0.99
epsilon = 1e-6
clip = 1.0
eval_every = 250
sample = 500
log_every = 10
[strategy]
zero = 1
schedule = gpipe
)");

  CHECK(job.ranks == 4);
  CHECK(job.strategy.name == "split");
  CHECK(job.seed == 18446744073709551615U);
  CHECK(job.threads == 3);
  CHECK(job.output == "/out");
  CHECK(job.mesh == std::vector<job::MeshAxis>{{"pipe", 2}, {"data", 2}});
  CHECK(job.plugins.path == std::vector<std::filesystem::path>{"/a", "/b:c"});
  CHECK(job.model.name == "toy");
  CHECK_FALSE(job.model.options.has("name"));
  CHECK(to_string(job.model.options) ==
        "layers = 4\nwidth = 16\nvocab = 65\nscale = 2.5\nbias = false\nnote = a ; note\nweights = /w.bin\n"
        "activation = relu\ntags = x,y\nstream = 9\n");
  CHECK(job.data.text == "/corpus.txt");
  CHECK(job.data.tokenizer == "byte");
  CHECK(job.data.split == 0.5);
  CHECK(job.data.batch == 8);
  CHECK(job.data.microbatches == 4);
  CHECK(job.data.eval_batch == 2);
  CHECK(job.train.steps == 2000);
  CHECK(job.train.learning_rate == 1e-2);
  CHECK(job.train.min_learning_rate == 1e-4);
  CHECK(job.train.schedule == job::Schedule::linear);
  CHECK(job.train.warmup == 100);
  CHECK(job.train.weight_decay == 0.1);
  CHECK(job.train.beta1 == 0.8);
  CHECK(job.train.beta2 == 0.99);
  CHECK(job.train.epsilon == 1e-6);
  CHECK(job.train.clip == 1.0);
  CHECK(job.train.eval_every == 250);
  CHECK(job.train.sample == 500);
  CHECK(job.train.log_every == 10);
  CHECK(to_string(job.strategy.options) == "zero = 1\nschedule = gpipe\n");
}

TEST_CASE("the other choices reach their fields", "[job]") {
  const job::Job sgd = parse(
      "[model]\nname = bare\n[train]\nsteps = 0\noptimizer = sgd\nmomentum = 0.9\n"
      "schedule = constant\n[data]\ntokens = /t.bin\n");
  CHECK(sgd.train.optimizer == job::Optimizer::sgd);
  CHECK(sgd.train.momentum == 0.9);
  CHECK(sgd.train.schedule == job::Schedule::constant);
  CHECK(sgd.data.tokens == "/t.bin");

  const job::Job arrays = parse("[model]\nname = bare\n[train]\nsteps = 0\n[data]\narrays = /x.npy, /y.npy\n");
  CHECK(arrays.data.arrays == std::vector<std::filesystem::path>{"/x.npy", "/y.npy"});

  const job::Job iterate = parse("[job]\ntask = iterate\n[model]\nname = bare\n[iterate]\nsteps = 5\n");
  CHECK(iterate.task == job::Task::iterate);
  CHECK(iterate.iterate.steps == 5);
}

TEST_CASE("keys of [cluster] for rates and axes reach their fields", "[job]") {
  const job::Job rates = parse(minimal +
                                   "[cluster]\nflops = 4e14\nmemory_bandwidth = 3e12\nbandwidth = 5e10\n"
                                   "latency = 1e-5\n[cluster.model]\nbandwidth = 4.5e11\n",
                               {"cluster.data.bandwidth=1e10", "cluster.data.latency=2e-5"});
  CHECK(rates.cluster.flops == 4e14);
  CHECK(rates.cluster.memory_bandwidth == 3e12);
  CHECK(rates.cluster.bandwidth == 5e10);
  CHECK(rates.cluster.latency == 1e-5);
  REQUIRE(rates.cluster.axes.size() == 2);
  CHECK(rates.cluster.axes[0].axis == "model");
  CHECK(rates.cluster.axes[0].bandwidth == 4.5e11);
  CHECK(rates.cluster.axes[0].latency == 1e-5);
  CHECK(rates.cluster.axes[1].axis == "data");
  CHECK(rates.cluster.axes[1].latency == 2e-5);
  CHECK(rates.where("cluster.data", "") == "--set cluster.data.bandwidth");

  const job::Job measured = parse(minimal + "[cluster]\nmeasured = /run\n");
  CHECK(measured.cluster.measured == "/run");
  CHECK(measured.cluster.flops == 0);
  CHECK_FALSE(parse(minimal).is_given("cluster", ""));
}

TEST_CASE("a job says where each setting comes from", "[job]") {
  const job::Job job = parse(minimal, {"data.batch=3"});

  CHECK(job.where("model", "name") == "toy.ini:2");
  CHECK(job.where("train", "") == "toy.ini:4");
  CHECK(job.where("data", "batch") == "--set data.batch");
  CHECK(job.where("train", "clip") == "toy.ini (default)");
  CHECK(job.is_given("train", "steps"));
  CHECK_FALSE(job.is_given("train", "clip"));
}

TEST_CASE("the plugin path is known before any plugin is loaded", "[job]") {
  const job::RawJob raw = job::read_job_text("[job]\nstrategy = unheard_of\n[plugins]\npath = /a:/b\n", "x.ini");

  CHECK(job::plugin_path(raw) == std::vector<std::filesystem::path>{"/a", "/b"});
  CHECK(job::plugin_path(job::read_job_text("", "x.ini")).empty());
}

TEST_CASE("the strategy's options are asked for last, with the rest of the job", "[job]") {
  job::SchemaProviders providers = test::job_providers();
  std::int64_t batch = 0;
  std::vector<std::filesystem::path> path;
  providers.strategy_options = [&](std::string_view, const job::Job& job) {
    batch = job.data.batch;
    path = job.plugins.path;
    return std::vector<OptionSpec>();
  };

  (void)job::parse_job(job::read_job_text(minimal + "[data]\nbatch = 5\n[plugins]\npath = /p\n", "x.ini"), providers);

  CHECK(batch == 5);
  CHECK(path == std::vector<std::filesystem::path>{"/p"});
}

TEST_CASE("without its weights, a job gets the model's options from the checkpoint that it resumes", "[job]") {
  const std::string text = "[job]\noutput = /o\n[checkpoint]\n[train]\nsteps = 1\n[model]\nfrom = /no/such/weights\n";
  job::SchemaProviders providers = job_providers();
  std::filesystem::path resumed = "/o/checkpoints/step-000001";
  bool is_wrong = false;
  providers.checkpoint_to_resume = [&](const job::Job& job) {
    if (is_wrong || job.output != "/o" || !job.checkpoints.used) {
      throw Error(ErrorCode::job, "no such checkpoint");
    }
    return resumed;
  };
  providers.model_of_weights = [](const std::filesystem::path& weights, const job::Job&) {
    if (weights == "/no/such/weights") {
      throw Error(ErrorCode::job, "no such weights");
    }
    return std::vector<job::RawSetting>{{.key = "name", .value = "toy"}, {.key = "width", .value = "16"}};
  };
  const auto width = [&](const std::string& more) {
    return job::parse_job(job::read_job_text(text + more, "x.ini"), providers).model.options.integer("width");
  };
  const auto refused = [&](const std::string& more) { return refusal(ErrorCode::job, [&] { return width(more); }); };
  CHECK(width("") == 16);
  CHECK(width("name = toy\n") == 16);
  CHECK(width("name = toy\nwidth = 5\n") == 5);
  CHECK_THAT(refused("name = bare\n"), Contains("'/o/checkpoints/step-000001' holds the model toy"));
  const std::string tokenised = "[data]\ntext = t\n";
  CHECK_THAT(refused("name = toy\n" + tokenised), Contains("put it back, or set [data] tokenizer"));
  CHECK(width("name = toy\nwidth = 5\n" + tokenised) == 5);

  resumed.clear();
  CHECK(refused("") == "x.ini:7: [model] from: no such weights");
  CHECK(refused("name = toy\n") == "x.ini:7: [model] from: no such weights");
  CHECK(width("name = toy\nwidth = 5\n") == 5);
  is_wrong = true;
  CHECK(refused("") == "no such checkpoint");
  CHECK(refused("name = toy\n") == "no such checkpoint");
  CHECK(width("name = toy\nwidth = 5\n") == 5);
}

TEST_CASE("a wrongly declared option is an error of the plugin", "[job]") {
  const auto declared = [](std::vector<OptionSpec> specs) {
    job::SchemaProviders providers = test::job_providers();
    providers.strategy_options = [specs = std::move(specs)](std::string_view, const job::Job&) { return specs; };
    return refusal(ErrorCode::plugin, [&] { return job::parse_job(job::read_job_text(minimal, "x.ini"), providers); });
  };

  CHECK(declared({{.name = "Zero"}}) ==
        "the strategy 'single' declares the option 'Zero' wrongly: a name is made of a-z, 0-9 and _, and begins with a "
        "letter");
  CHECK(declared({{.name = "a", .default_value = "1"}, {.name = "a", .default_value = "1"}}) ==
        "the strategy 'single' declares the option 'a' wrongly: there are two of that name");
  CHECK(declared({{.name = "a", .default_value = "x"}}) ==
        "the strategy 'single' declares the option 'a' wrongly: its default: a = x: is not an integer; write its "
        "digits alone, without unit, decimal point or exponent");

  job::SchemaProviders providers = test::job_providers();
  providers.model_options = [](std::string_view, const job::Job&) { return std::vector<OptionSpec>{{.name = "name"}}; };
  CHECK(refusal(ErrorCode::plugin, [&] { return job::parse_job(job::read_job_text(minimal, "x.ini"), providers); }) ==
        "the model 'toy' declares the option 'name' wrongly: there are two of that name");
}

TEST_CASE("values at the edge of having an effect are accepted", "[job]") {
  CHECK_NOTHROW(parse(minimal + "warmup = 10\nlearning_rate = 0.5\nmin_learning_rate = 0.5\n"));
  CHECK_NOTHROW(parse(minimal + "[data]\nbatch = 4\nmicrobatches = 4\n"));
  CHECK_NOTHROW(parse(minimal + "[data]\nsplit = 1\n"));
  CHECK_NOTHROW(parse(minimal + "gradients = float32\n"));
  CHECK_NOTHROW(parse(minimal + "[data]\ntext = t\ntokenizer = byte\n[strategy]\n"));
}

TEST_CASE("a long name of a mesh axis does not fill the screen", "[job]") {
  const std::string axis(5000, 'a');

  CHECK(refusal(minimal + "[mesh]\n" + axis + " = 0\n") ==
        "toy.ini:7: [mesh] " + std::string(60, 'a') + "... (5000 bytes) = 0: must be at least 1");
  CHECK(refusal(minimal + "[mesh]\n" + axis + " = 2\n").size() < 300);
}

TEST_CASE("a transport opened by another transport has its section too", "[job]") {
  const std::string veiled = "[job]\ntransport = veil\n" + minimal + "[transport.veil]\nover = wire\n";
  const job::Job job = parse(veiled + "[transport.wire]\ndelay = 2\n");

  REQUIRE(job.transports.size() == 2);
  CHECK(job.transports[0].name == "veil");
  CHECK(job.transports[1].name == "wire");
  CHECK(job.transports[1].options.real("delay") == 2);
  CHECK_THAT(refusal(veiled + "[transport.wire]\ndely = 2\n"), Catch::Contains("did you mean 'delay'?"));
  CHECK_THAT(refusal(veiled + "[transport.shm]\n"), Catch::Contains("[transport.shm] has no effect"));
  CHECK_THAT(refusal(veiled, {"transport.veil.over=wir"}), Catch::Contains("there is no transport 'wir'"));
  CHECK(parse(veiled, {"transport.veil.over=veil"}).transports.size() == 1);  // whether this works shows later
}

namespace {

job::Job parse_where(std::int64_t ranks_here, const std::string& text, const std::vector<std::string>& overrides = {}) {
  job::SchemaProviders providers = job_providers();
  providers.automatic_ranks = [ranks_here](const job::Job&) { return ranks_here; };
  return job::parse_job(job::read_job_text(text, "toy.ini", overrides), providers);
}

}  // namespace

TEST_CASE("ranks = auto is the number of places here", "[job]") {
  const job::Job job = parse_where(6, minimal + "[job]\nranks = auto\n");

  CHECK(job.ranks == 6);
  CHECK(job.transports.size() == 1);
  // The text of the job as it was run has the number.
  CHECK_THAT(job::canonical_text(job), Contains("ranks = 6\n"));
  CHECK(parse_where(1, minimal + "[job]\nranks = auto\n").transports.empty());
  CHECK(parse_where(3, minimal + "[job]\nranks = 2\n", {"job.ranks=auto"}).ranks == 3);
  CHECK(parse_where(3, minimal).ranks == 1);
}

TEST_CASE("ranks = auto is the product of the mesh if there is one", "[job]") {
  const job::Job job = parse_where(64, minimal + "[job]\nranks = auto\n[mesh]\ndata = 2\nmodel = 3\n");

  CHECK(job.ranks == 6);
  CHECK_THAT(job::canonical_text(job), Contains("ranks = 6\n"));
}

TEST_CASE("a range of ranks becomes the number of places here, within the range", "[job]") {
  const auto ranks = [](std::int64_t here) { return parse_where(here, minimal + "[job]\nranks = 2..8\n").ranks; };

  CHECK(ranks(1) == 2);
  CHECK(ranks(6) == 6);
  CHECK(ranks(64) == 8);
  const job::Job job = parse_where(6, minimal + "[job]\nranks = 2..8\n");
  CHECK(job.elastic_ranks == IntegerRange{2, 8});
  CHECK_THAT(job::canonical_text(job), Contains("ranks = 6\n"));
  CHECK_FALSE(parse_where(6, minimal + "[job]\nranks = 6\n").elastic_ranks);
  CHECK(parse_where(1, minimal + "[job]\nranks = 2..8\n[mesh]\ndata = 2\nmodel = 3\n").ranks == 6);
  CHECK_THAT(refusal(minimal + "[job]\nranks = 2..4\n[mesh]\ndata = 2\nmodel = 3\n"),
             Contains("has 6 places for [job] ranks = 4"));
  CHECK_THAT(refusal(minimal + "[job]\nranks = 8..2\n"), Contains("ranks = 8..2: begins above its end"));
  CHECK_THAT(refusal(minimal + "[job]\nranks = 0..2\n"), Contains("ranks = 0..2: must be at least 1"));
  CHECK_THAT(refusal(minimal + "[job]\nranks = 2..\n"), Contains("is not a range; write two integers, such as 2..8"));
  CHECK_THAT(refusal(minimal + "[job]\nthreads = 1..2\n"), Contains("threads = 1..2: is not an integer"));
}

TEST_CASE("auto is accepted for ranks alone", "[job]") {
  CHECK_THAT(refusal(minimal + "[job]\nthreads = auto\n"), Contains("threads = auto: is not an integer"));
  CHECK_THAT(refusal(minimal + "[job]\nranks = Auto\n"), Contains("ranks = Auto: is not an integer; write its digits "
                                                                  "alone, without unit, decimal point or exponent, or "
                                                                  "auto, or a range such as 2..8"));
  CHECK_THAT(refusal(minimal + "[job]\nranks = 0\n"), Contains("must be at least 1"));
}
