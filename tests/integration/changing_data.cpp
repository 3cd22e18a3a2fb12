// Data that another process writes to while a job starts or runs. SHARDRUN_ATTACKS=50 repeats each attack so often.

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/processes.h"
#include "tests/integration/program.h"
#include "tests/support/attacks.h"
#include "tests/support/catch.h"
#include "tests/support/npy.h"
#include "tests/support/text_job.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;

namespace {

void overwrite(const std::filesystem::path& path, std::streamoff at, const std::string& bytes) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(at);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// Runs the job and calls `act` once, when its first step is done.
Ended run_disturbed(const JobFolder& job, const std::vector<std::string>& overrides, const std::function<void()>& act) {
  bool acted = false;
  const Ended ended = run_program(job.path(), with_settings({"job.ini"}, overrides), [&](pid_t, std::string_view out) {
    if (!acted && out.find("step 1/") != std::string_view::npos) {
      acted = true;
      act();
    }
  });
  CHECK(acted);
  return ended;
}

/// Settings of a run that is far from its end when the attack happens.
std::vector<std::string> long_run(std::vector<std::string> more) {
  more.insert(more.end(), {"train.steps=1000000", "train.eval_every=0"});
  return more;
}

std::string token_bytes(std::size_t count, std::uint16_t below) {
  std::string bytes;
  for (std::size_t i = 0; i < count; ++i) {
    bytes += bytes_of<std::uint16_t>({static_cast<std::uint16_t>(i * i % below)});
  }
  return bytes;
}

const std::vector<std::string> two_ranks = {"job.ranks=2", "job.strategy=tp", "job.transport=shm"};

/// Writes a job that reads tokens or arrays instead of the text.
void write_job(const JobFolder& job, const std::string& model_and_data) {
  write_file(job.path() / "job.ini",
             "[job]\noutput = run\nthreads = 1\n" + model_and_data + "batch = 8\n[train]\nsteps = 5\n");
}

void write_token_job(const JobFolder& job) {
  write_file(job.path() / "train.bin", token_bytes(4000, 10));
  write_job(job,
            "[model]\nname = gpt\nlayers = 1\nheads = 2\nwidth = 16\ncontext = 16\nvocab = 10\n"
            "[data]\ntokens = train.bin\n");
}

void write_array_job(const JobFolder& job) {
  const std::string values(std::size_t{4000} * 4 * sizeof(float), '\0');
  std::string labels;
  for (std::int64_t i = 0; i < 4000; ++i) {
    labels += bytes_of<std::int64_t>({i % 5});
  }
  write_file(job.path() / "x.npy", npy_file("{'descr': '<f4', 'fortran_order': False, 'shape': (4000, 4), }", values));
  write_file(job.path() / "y.npy", npy_file("{'descr': '<i8', 'fortran_order': False, 'shape': (4000,), }", labels));
  write_job(job, "[model]\nname = mlp\nhidden = 8\nloss = cross_entropy\n[data]\narrays = x.npy, y.npy\n");
}

/// Changes a file while a job of one rank runs, and then while one of two ranks does. Each job must fail with the
/// expected message about the file.
void attack(const JobFolder& job, const std::string& file, const std::string& setting,
            const std::function<void(const std::filesystem::path& path)>& change, const std::string& expected) {
  const std::string original = read_file(job.path() / file);
  for (int i = 0; i < attacks(1); ++i) {
    for (const bool several : {false, true}) {
      std::filesystem::remove_all(job.path() / "run");
      write_file(job.path() / file, original);
      std::vector<std::string> overrides = {"train.steps=1000000"};
      if (several) {
        overrides.insert(overrides.end(), {"job.ranks=2", "job.strategy=dp", "job.transport=shm"});
      }
      const Ended ended = run_disturbed(job, overrides, [&] { change(job.path() / file); });
      INFO(ended.err);
      CHECK(ended.code == 1);
      CHECK_THAT(ended.err, Contains("[data] " + setting + ": '") && Contains(file + "' ") && Contains(expected));
      CHECK(job.summary().at("status") == "failed");
      CHECK_FALSE(std::filesystem::exists(job.path() / "run/weights.safetensors"));
    }
  }
  write_file(job.path() / file, original);
}

}  // namespace

TEST_CASE("all ranks train on the same state of a text that grows while they start", "[data]") {
  for (int i = 0; i < attacks(3); ++i) {
    const JobFolder job;
    const std::filesystem::path corpus = job.path() / "corpus.txt";
    std::string text = read_file(corpus);
    std::atomic<bool> begun = false;
    std::thread appending([&] {
      for (unsigned k = 0; !begun; ++k) {
        const std::string more(1 + k % 37, static_cast<char>('A' + k % 26));  // other characters: another vocabulary
        std::ofstream(corpus, std::ios::app) << more;
        text += more;
        for (unsigned pause = 0; pause < 20 + k * 131 % 200 && !begun; ++pause) {
          std::this_thread::yield();
        }
      }
    });
    std::vector<std::string> overrides = two_ranks;
    overrides.insert(overrides.end(), {"train.steps=5", "train.eval_every=0"});
    const Ended ended = run_program(
        job.path(), with_settings({"job.ini"}, overrides),
        [&](pid_t, std::string_view out) { begun = begun || out.find("step 1/") != std::string_view::npos; });
    begun = true;
    appending.join();
    INFO(ended.err);
    REQUIRE(ended.code == 0);
    const std::vector<double> found = job.losses();

    // "corpus.txt: 3600 training and 400 validation tokens, …". A token is one character.
    const std::size_t at = ended.out.find("corpus.txt: ") + 12;
    const std::size_t training = std::stoul(ended.out.substr(at));
    const std::size_t validation = std::stoul(ended.out.substr(ended.out.find(" and ", at) + 5));
    REQUIRE(training + validation <= text.size());
    write_file(corpus, text.substr(0, training + validation));
    REQUIRE(job.run({"train.steps=5", "train.eval_every=0"}).code == 0);
    const std::vector<double> expected = job.losses();
    REQUIRE(found.size() == expected.size());
    for (std::size_t step = 0; step < found.size(); ++step) {
      CHECK(std::abs(found[step] - expected[step]) < 1e-4);
    }
  }
}

TEST_CASE("a token file that is written to during a job ends the job", "[data]") {
  const JobFolder job;
  write_token_job(job);
  const auto with = [&](const std::string& bytes) {
    return [bytes](const std::filesystem::path& path) { overwrite(path, 0, bytes); };
  };
  attack(job, "train.bin", "tokens", with(token_bytes(4000, 9)), "changed while this job was using it: its time of last");
  attack(job, "train.bin", "tokens", with(std::string(8000, '\x70')), "changed while this job was using it: its ");
  // The file system sets the new time before the new size, so either may be seen first.
  attack(
      job, "train.bin", "tokens", [](const auto& path) { overwrite(path, 8000, "more"); },
      "changed while this job was using it: it");
}

TEST_CASE("a file that is cut short while a job runs ends it with an error, not with a signal", "[data]") {
  const auto cut = [](const std::filesystem::path& path) { std::filesystem::resize_file(path, 100); };
  const JobFolder tokens;
  write_token_job(tokens);
  attack(tokens, "train.bin", "tokens", cut, "it had 8000 bytes and has 100 now");
  const JobFolder arrays;
  write_array_job(arrays);
  attack(arrays, "x.npy", "arrays", cut, "bytes and has 100 now");
  attack(arrays, "y.npy", "arrays", cut, "bytes and has 100 now");
}

TEST_CASE("labels that are written while a job runs are never trained on", "[data]") {
  const JobFolder job;
  write_array_job(job);
  attack(
      job, "y.npy", "arrays", [](const auto& path) { overwrite(path, 128, std::string(32000, '\x01')); },
      "changed while this job was using it");
}

TEST_CASE("a data file that is replaced or removed during a job does not disturb it", "[data]") {
  const JobFolder job;
  write_token_job(job);
  const std::filesystem::path file = job.path() / "train.bin";
  const std::string original = read_file(file);
  const auto replace = [&] {
    write_file(job.path() / "new.bin", token_bytes(4000, 3));
    std::filesystem::rename(job.path() / "new.bin", file);
  };
  const auto remove = [&] { std::filesystem::remove(file); };
  constexpr std::ptrdiff_t steps = 2000;
  const std::vector<std::string> one = {"train.steps=2000"};
  const std::vector<std::string> two = {"train.steps=2000", "job.ranks=2", "job.strategy=dp", "job.transport=shm"};
  for (const std::vector<std::string>& overrides : {one, two}) {
    write_file(file, original);
    REQUIRE(job.run(overrides).code == 0);
    const std::vector<double> expected = job.losses();
    for (const std::function<void()>& act : {std::function<void()>(replace), std::function<void()>(remove)}) {
      write_file(file, original);
      const Ended ended = run_disturbed(job, overrides, [&] {
        act();
        const std::string done = read_file(job.path() / "run/metrics.jsonl");
        CHECK(std::count(done.begin(), done.end(), '\n') < steps);  // some steps are done after the file was changed
      });
      INFO(ended.err);
      CHECK(ended.code == 0);
      CHECK(job.losses() == expected);
    }
  }
}

TEST_CASE("a signal right after the data file is removed ends the run after a step, and saves the weights", "[data]") {
  for (int i = 0; i < attacks(3); ++i) {
    for (const bool several : {false, true}) {
      const JobFolder job;
      write_token_job(job);
      std::vector<std::string> overrides = {"train.steps=1000000", "model.width=64", "data.batch=64",
                                            "data.microbatches=32"};
      if (several) {
        overrides.insert(overrides.end(), {"job.ranks=2", "job.strategy=dp", "job.transport=shm"});
      }
      bool acted = false;
      const Ended ended =
          run_program(job.path(), with_settings({"job.ini"}, overrides), [&](pid_t launcher, std::string_view out) {
            if (!acted && out.find("step 1/") != std::string_view::npos) {
              acted = true;
              kill(launcher, SIGTERM);
              std::filesystem::remove(job.path() / "train.bin");
            }
          });
      INFO(ended.err);
      CHECK(ended.code == 143);
      CHECK_THAT(ended.out + ended.err, !Contains("before the first step"));
      CHECK(job.summary().at("status") == "stopped");
      CHECK(std::filesystem::exists(job.path() / "run/weights.safetensors"));
    }
  }
}

TEST_CASE("ranks share the memory of a text's tokens, and summary and plan state its size", "[data]") {
  const JobFolder job;
  const std::string text = sentences(3'000'000);
  write_file(job.path() / "corpus.txt", text);
  std::vector<std::string> overrides = long_run(two_ranks);
  const Ended planned = run_program(job.path(), with_settings({"plan", "job.ini", "--json"}, two_ranks));
  const auto plan = boost::json::parse(planned.out).as_object();
  const std::int64_t bytes = plan.at("data_bytes").to_number<std::int64_t>();
  CHECK(bytes >= static_cast<std::int64_t>(text.size()));
  CHECK(bytes < static_cast<std::int64_t>(text.size()) + 10'000);

  std::vector<ino_t> memories;
  bool seen = false;
  const Ended ended =
      run_program(job.path(), with_settings({"job.ini"}, overrides), [&](pid_t launcher, std::string_view out) {
        if (seen || out.find("step 1/") == std::string_view::npos) {
          return;
        }
        seen = true;
        for (const pid_t rank : children_of(launcher)) {
          for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(rank) + "/fd")) {
            struct stat status = {};
            if (std::filesystem::read_symlink(entry.path()).string().find("shardrun-tokens") != std::string::npos &&
                stat(entry.path().c_str(), &status) == 0) {
              CHECK(status.st_size == bytes);
              memories.push_back(status.st_ino);
            }
          }
        }
        kill(launcher, SIGINT);
      });
  CHECK(ended.code == 130);
  REQUIRE(memories.size() == 2);
  CHECK(memories[0] == memories[1]);
  CHECK(job.summary().at("data_bytes") == bytes);
}
