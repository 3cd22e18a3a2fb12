// The networks of examples/programs, and Llama. They learn, and they learn the same under each strategy.

#include <cmath>
#include <vector>

#include "tests/integration/example_programs.h"
#include "tests/integration/images.h"
#include "tests/support/depth.h"
#include "tests/support/npy.h"

using namespace shardrun::test;

namespace {

/// 60 samples of 5 features; the target is whether the first is larger than the last.
void write_samples(const std::filesystem::path& folder) {
  std::string features;
  std::string targets;
  for (int sample = 0; sample < 60; ++sample) {
    const auto value = [&](int feature) { return static_cast<float>((sample * 7 + feature * 3) % 11) / 11.0F; };
    for (int feature = 0; feature < 5; ++feature) {
      features += bytes_of({value(feature)});
    }
    targets += bytes_of({value(0) > value(4) ? 1.0F : 0.0F});
  }
  write_file(folder / "x.npy", npy_file("{'descr': '<f4', 'fortran_order': False, 'shape': (60, 5), }", features));
  write_file(folder / "y.npy", npy_file("{'descr': '<f4', 'fortran_order': False, 'shape': (60, 1), }", targets));
}

constexpr int masked_features = 3;
constexpr int masked_samples = 12;

/// Writes 12 samples. In the first `counted` of them, the first value is positive.
void write_masked(const std::filesystem::path& folder, int counted) {
  std::string features;
  std::string targets;
  for (int sample = 0; sample < masked_samples; ++sample) {
    features += bytes_of({sample < counted ? 1.0F + static_cast<float>(sample) / 8.0F : -1.0F,
                          static_cast<float>(sample % 5) / 4.0F, static_cast<float>(sample % 3)});
    targets += bytes_of({static_cast<float>(sample % 4) - 1.0F});
  }
  write_file(folder / "x.npy", npy_file("{'descr': '<f4', 'fortran_order': False, 'shape': (12, 3), }", features));
  write_file(folder / "y.npy", npy_file("{'descr': '<f4', 'fortran_order': False, 'shape': (12, 1), }", targets));
}

/// The losses of plain gradient descent on all samples of write_masked() at once, by the formulas of masked.cpp. The
/// four hidden values are always the same.
std::vector<double> masked_losses(int counted, int steps, double rate) {
  double w0[masked_features] = {0.1, 0.1, 0.1};
  double w1 = 0.2;
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    double loss = 0;
    double d0[masked_features] = {};
    double d1 = 0;
    for (int sample = 0; sample < counted; ++sample) {
      const double x[masked_features] = {1.0 + sample / 8.0, (sample % 5) / 4.0, static_cast<double>(sample % 3)};
      const double hidden = x[0] * w0[0] + x[1] * w0[1] + x[2] * w0[2];
      const double off = 4 * hidden * w1 - (sample % 4 - 1.0);
      loss += off * off / 2;
      d1 += off * hidden;
      for (int i = 0; i < masked_features; ++i) {
        d0[i] += off * w1 * x[i];
      }
    }
    const double count = std::max(counted, 1);
    losses.push_back(loss / count);
    w1 -= rate * d1 / count;
    for (int i = 0; i < masked_features; ++i) {
      w0[i] -= rate * d0[i] / count;
    }
  }
  return losses;
}

}  // namespace

TEST_CASE("a loss with counts is the sum over all samples divided by their count, however a step is divided",
          "[programs]") {
  struct Division {
    const char* microbatches;
    const char* ranks;
    const char* strategy;
  };
  for (const int counted : {7, 1, 0}) {
    const TemporaryFolder folder;
    write_masked(folder.path(), counted);
    const std::vector<double> expected = masked_losses(counted, 5, 0.1);
    for (const auto& [microbatches, ranks, strategy] :
         {Division{"1", "1", "single"}, Division{"12", "1", "single"}, Division{"5", "1", "single"},
          Division{"1", "3", "dp"}, Division{"5", "2", "dp"}, Division{"4", "2", "zero3"}, Division{"3", "2", "tp"},
          Division{"4", "2", "pp"}}) {
      INFO(counted << " count; " << microbatches << " microbatches, " << strategy << " over " << ranks);
      const std::vector<std::string> settings = {
          std::string("job.ranks=") + ranks,
          std::string("job.strategy=") + strategy,
          std::string("data.microbatches=") + microbatches,
          "data.split=1",
          "data.arrays=" + (folder / "x.npy").string() + ", " + (folder / "y.npy").string(),
          "train.steps=5",
          "job.output=out"};
      const std::vector<double> losses = losses_of(folder.path(), example("masked"), settings);
      REQUIRE(losses.size() == 5);
      for (std::size_t step = 0; step < losses.size(); ++step) {
        CHECK(losses[step] == Approx(expected[step]).epsilon(1e-5));
      }
      run_job(folder.path(), "verify", example("masked"), settings);
    }
  }
}

TEST_CASE("clipping and validation use the loss with counts after its division", "[programs]") {
  const TemporaryFolder folder;
  write_masked(folder.path(), 7);
  const auto settings_of = [&](const char* microbatches, const char* eval_batch) {
    return std::vector<std::string>{
        "data.arrays=" + (folder / "x.npy").string() + ", " + (folder / "y.npy").string(),
        "data.validation_arrays=" + (folder / "x.npy").string() + ", " + (folder / "y.npy").string(),
        std::string("data.microbatches=") + microbatches,
        std::string("data.eval_batch=") + eval_batch,
        "train.clip=0.01",
        "train.steps=2",
        "train.optimizer=adamw",
        "job.output=out"};
  };
  std::vector<double> seen;
  for (const auto& [microbatches, eval_batch] : {std::pair{"1", "12"}, {"12", "1"}, {"5", "5"}}) {
    const std::vector<std::string> settings = settings_of(microbatches, eval_batch);
    run_job(folder.path(), "run", example("masked"), settings);
    std::vector<double> now;
    for (const boost::json::object& line : read_json_lines(folder / "out/metrics.jsonl")) {
      now.push_back(line.at("grad_norm").to_number<double>());
    }
    now.push_back(read_json(folder / "out/summary.json").at("val_loss").to_number<double>());
    seen = seen.empty() ? now : seen;
    REQUIRE(now.size() == 3);
    for (std::size_t i = 0; i < now.size(); ++i) {
      CHECK(now[i] == Approx(seen[i]).epsilon(1e-5));
    }
    run_job(folder.path(), "verify", example("masked"), settings);
  }
}

TEST_CASE("the example networks learn the same under each strategy", "[programs]") {
  const TemporaryFolder folder;
  write_samples(folder.path());
  const std::vector<std::string> data = {
      "data.arrays=" + (folder / "x.npy").string() + ", " + (folder / "y.npy").string(), "job.output=out"};
  for (const std::string name : {"relu_network", "logistic"}) {
    std::vector<double> alone;
    for (const std::string strategy : {"single", "dp", "zero3", "tp"}) {
      if (strategy == "tp" && name == "logistic") {
        continue;  // it has none of the axes that tp splits
      }
      INFO(name << " " << strategy);
      std::vector<std::string> settings = data;
      settings.push_back("job.strategy=" + strategy);
      settings.emplace_back(strategy == "single" ? "job.ranks=1" : "job.ranks=2");
      const std::vector<double> losses = losses_of(folder.path(), example(name), settings);
      REQUIRE(losses.size() == 200);
      CHECK(losses.back() < 0.7 * losses.front());
      alone = alone.empty() ? losses : alone;
      for (std::size_t step = 0; step < losses.size(); ++step) {
        REQUIRE(losses[step] == Approx(alone[step]).epsilon(1e-4));
      }
      run_job(folder.path(), "verify", example(name), settings);
    }
  }
}

// Its batch norm has the statistics of the whole batch, whatever the split.
TEST_CASE("a convolutional network has the same losses with the batch or the images split", "[programs]") {
  const TemporaryFolder folder;
  write_images(folder.path());
  const std::vector<std::vector<std::string>> splits = {
      {"job.strategy=single", "job.ranks=1"},
      {"job.strategy=dp", "job.ranks=2"},
      {"job.strategy=dp", "job.ranks=4"},
      {"job.strategy=zero3", "job.ranks=2"},
      {"job.strategy=named", "job.ranks=3", "mesh.a=3", "sharding.rows=a"},
      {"job.strategy=named", "job.ranks=4", "mesh.a=2", "mesh.b=2", "sharding.rows=a", "sharding.columns=b"},
      {"job.strategy=named", "job.ranks=4", "mesh.a=2", "mesh.b=2", "sharding.batch=a", "sharding.rows=b"}};
  const auto settings_of = [&](std::vector<std::string> settings, const char* more) {
    settings.push_back("data.arrays=" + (folder / "x.npy").string() + ", " + (folder / "y.npy").string());
    for (const char* setting : {"model.rows=13", "model.channels=6", "data.batch=20", "train.steps=20", more}) {
      settings.emplace_back(setting);
    }
    return settings;
  };
  std::vector<double> alone;
  for (const std::vector<std::string>& split : splits) {
    INFO(split[0] << " " << split[1] << " " << split.back());
    const std::vector<std::string> settings = settings_of(split, "job.output=out");
    const std::vector<double> losses = losses_of(folder.path(), example("conv_net"), settings);
    REQUIRE(losses.size() == 20);
    CHECK(losses.back() < 0.8 * losses.front());
    alone = alone.empty() ? losses : alone;
    for (std::size_t step = 0; step < losses.size(); ++step) {
      INFO("step " << step);
      CHECK(losses[step] == Approx(alone[step]).epsilon(1e-6));
    }
    run_job(folder.path(), "verify", example("conv_net"), settings);
  }
  run_job(folder.path(), "verify", example("conv_net"), settings_of(splits.back(), "train.precision=mixed"));
}

TEST_CASE("a model without data is trained to rest, on one to three ranks", "[programs]") {
  const TemporaryFolder folder;
  for (const char* ranks : {"1", "2", "3"}) {
    INFO(ranks);
    const Ended ended =
        run_job(folder.path(), "run", example("spring"), {std::string("job.ranks=") + ranks, "job.output=out"});
    CHECK_THAT(ended.out, Catch::Contains(" samples/s"));
    const std::vector<float> height = read_states(folder / "out/weights.safetensors").at("height");
    REQUIRE(height.size() == 4);
    // Spring i carries the weights below it, 0.045 each.
    double expected = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      expected -= 0.045 * static_cast<double>(4 - i);
      CHECK(height[i] == Approx(expected).epsilon(1e-4));
    }
  }
  run_job(folder.path(), "verify", example("spring"));
}

namespace {

boost::json::object plan_of(const std::filesystem::path& folder, const std::string& name,
                            const std::vector<std::string>& settings) {
  return boost::json::parse(run_job(folder, "plan", example(name), settings).out).as_object();
}

}  // namespace

TEST_CASE("ResNet-50 has its published number of parameters, operations and gradient bytes", "[programs]") {
  const TemporaryFolder folder;
  const boost::json::object plan = plan_of(folder.path(), "resnet50", {});
  CHECK(plan.at("parameters").to_number<std::int64_t>() == 25557032);
  const boost::json::object& rank = plan.at("ranks").as_array().at(0).as_object();
  CHECK(rank.at("bytes").at("gradients").to_number<std::int64_t>() == 102228128);
  // 4.1e9 multiply-adds for an image in forward, and twice as many in backward.
  CHECK(plan.at("flops_per_step").to_number<double>() / 256 / 3 / 2 == Approx(4.1e9).epsilon(0.02));
  // A ring sends 7/8 of the gradients twice. The rest is for batch norm.
  CHECK(rank.at("sent_bytes").at("data").at("all_reduce").to_number<double>() ==
        Approx(102228128.0 * 2 * 7 / 8).epsilon(0.004));
}

// A hundred layers of float32 differ by 5e-7 in the loss. Some activation then lies on the other side of zero, which
// changes gradients by a percent: hence the small learning rate.
TEST_CASE("a narrow ResNet-50 has the same losses with samples, rows or columns split, and agrees with the reference",
          "[programs]") {
  const TemporaryFolder folder;
  std::string pixels;
  std::string labels;
  for (int sample = 0; sample < 16; ++sample) {
    std::uint32_t noise = 12345U + static_cast<std::uint32_t>(sample);
    for (int pixel = 0; pixel < 3 * 64 * 64; ++pixel) {
      noise = noise * 1664525U + 1013904223U;
      const bool bright = pixel / 64 % (5 + sample % 3) == 0;
      pixels += bytes_of({static_cast<float>(noise >> 8U) * 0x1p-22F - 2.0F + (bright ? 2.0F : 0.0F)});
    }
    labels += bytes_of({static_cast<std::int64_t>(sample % 3)});
  }
  write_file(folder / "x.npy", npy_file("{'descr': '<f4', 'fortran_order': False, 'shape': (16, 12288), }", pixels));
  write_file(folder / "y.npy", npy_file("{'descr': '<i8', 'fortran_order': False, 'shape': (16,), }", labels));
  const auto run = [&](const std::string& job) {
    write_file(folder / "narrow.ini",
               "[job]\noutput = out\n" + job +
                   "[model]\nname = resnet50\nwidth = 4\nrows = 64\ncolumns = 64\nclasses = 3\n"
                   "[data]\narrays = x.npy, y.npy\nsplit = 1\nbatch = 16\n[train]\nsteps = 3\noptimizer = sgd\n"
                   "learning_rate = 3e-6\nschedule = constant\n");
    return losses_of(folder.path(), "narrow.ini", {});
  };
  const std::vector<double> alone = run("ranks = 1\n");
  REQUIRE(alone.size() == 3);
  CHECK(alone.back() < alone.front() - 1e-4);
  if (all_tests) {  // the reference takes long; below it verifies a split, whose losses are the same
    run_job(folder.path(), "verify", "narrow.ini");
  }
  const std::string spatial = "strategy = named\n";
  for (const std::string& job :
       {std::string("ranks = 2\nstrategy = dp\n"), std::string("ranks = 4\nstrategy = dp\n"),
        "ranks = 2\n" + spatial + "[mesh]\nh = 2\n[sharding]\nrows = h\n",
        "ranks = 4\n" + spatial + "[mesh]\nh = 2\nw = 2\n[sharding]\nrows = h\ncolumns = w\n"}) {
    INFO(job);
    const std::vector<double> split = run(job);
    REQUIRE(split.size() == alone.size());
    for (std::size_t step = 0; step < alone.size(); ++step) {
      CHECK(split[step] == Approx(alone[step]).epsilon(1e-6));
    }
  }
  run_job(folder.path(), "verify", "narrow.ini");
}

TEST_CASE("Llama 3 8B has its published number of parameters, and Llama trains alike under each strategy",
          "[programs]") {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 4000; ++i) {
    text += static_cast<char>('a' + (i * i + i / 7) % 13);
  }
  write_file(folder / "corpus.txt", text);
  const std::string corpus = "data.text=" + (folder / "corpus.txt").string();
  const boost::json::object plan =
      plan_of(folder.path(), "../llama",
              {corpus, "model.layers=32", "model.heads=32", "model.kv_heads=8", "model.width=4096",
               "model.head_dim=128", "model.hidden=14336", "model.vocab=128256", "cluster.flops=1e14",
               "cluster.memory_bandwidth=1e12", "cluster.bandwidth=1e11"});
  CHECK(plan.at("parameters").to_number<std::int64_t>() == 8030261248);  // of Llama 3 8B
  const boost::json::object& predicted = plan.at("predicted").as_object();
  CHECK(predicted.at("tokens_per_s").as_double() == Approx(64 * predicted.at("samples_per_s").as_double()));

  const std::vector<std::string> small = {corpus, "job.output=out", "train.steps=10", "model.context=24"};
  std::vector<double> alone;
  for (const std::string strategy : {"single", "dp", "tp", "zero3", "pp"}) {
    INFO(strategy);
    std::vector<std::string> settings = small;
    settings.push_back("job.strategy=" + strategy);
    settings.emplace_back(strategy == "single" ? "job.ranks=1" : "job.ranks=2");
    const std::vector<double> losses = losses_of(folder.path(), example("../llama"), settings);
    REQUIRE(losses.size() == 10);
    alone = alone.empty() ? losses : alone;
    CHECK(losses.back() < losses.front() - 0.1);
    for (std::size_t step = 0; step < losses.size(); ++step) {
      CHECK(losses[step] == Approx(alone[step]).epsilon(1e-5));
    }
  }
  std::vector<std::string> verified = small;
  run_job(folder.path(), "verify", example("../llama"), verified);
}

TEST_CASE("a vision transformer trains, is verified and predicts alike under each strategy", "[programs]") {
  const TemporaryFolder folder;
  std::vector<double> alone;
  const std::vector<std::vector<std::string>> splits = {
      {"job.strategy=single", "job.ranks=1"},
      {"job.strategy=dp", "job.ranks=3"},
      {"job.strategy=tp", "job.ranks=2"},
      {"job.strategy=pp", "job.ranks=2"},
      {"job.strategy=zero3", "job.ranks=3"},
      {"job.strategy=3d", "job.ranks=8", "mesh.data=2", "mesh.model=2", "mesh.pipe=2"}};
  for (std::vector<std::string> settings : splits) {
    INFO(settings[0]);
    settings.insert(settings.end(), {"job.output=out", "train.steps=10"});
    const std::vector<double> losses = losses_of(folder.path(), example("vit"), settings);
    REQUIRE(losses.size() == 10);
    alone = alone.empty() ? losses : alone;
    CHECK(losses.back() < losses.front());
    for (std::size_t step = 0; step < losses.size(); ++step) {
      CHECK(losses[step] == Approx(alone[step]).epsilon(1e-5));
    }
    settings.emplace_back("data.batch=8");
    run_job(folder.path(), "verify", example("vit"), settings);
  }
}
