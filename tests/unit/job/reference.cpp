#include "core/job/reference.h"

#include <fstream>
#include <iterator>
#include <string>

#include "core/job/schema.h"
#include "tests/unit/job/support.h"

using namespace shardrun;

TEST_CASE("docs/job-file.md equals the printed reference of the job file", "[job]") {
  std::ifstream file(SHARDRUN_SOURCE_DIR "/docs/job-file.md");
  const std::string page((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());

  INFO("write it again: shardrun help job --markdown > docs/job-file.md");
  CHECK(page == job::job_reference_markdown());
}

TEST_CASE("the reference names every key with its default and its rules", "[job]") {
  const std::string text = job::job_reference();

  for (const job::Section& section : job::schema()) {
    CHECK(text.find("\n[" + section.name + "]\n") != std::string::npos);
    for (const job::Setting& setting : section.settings) {
      CHECK(text.find("\n  " + setting.spec.name + " ") != std::string::npos);
    }
  }
  CHECK(text.find("  learning_rate       a number, more than 0; default 1e-3\n") != std::string::npos);
  CHECK(text.find("  steps               an integer, at least 0; required\n") != std::string::npos);
  CHECK(text.find("  output              a path; default runs/<name of the job file>\n") != std::string::npos);
  CHECK(text.find("  warmup is at most steps.\n") != std::string::npos);
  CHECK(text.find("  momentum is refused with optimizer = adamw, where it has no effect.\n") != std::string::npos);
}

TEST_CASE("lines of the reference fit a terminal", "[job]") {
  const std::string text = job::job_reference();
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = text.find('\n', start);
    INFO(text.substr(start, end - start));
    CHECK(end - start <= 100);
    start = end + 1;
  }
}

TEST_CASE("every rule between settings names existing keys", "[job]") {
  const auto exists = [](const job::KeyName& name) {
    return job::find_setting(job::section_named(name.section), name.key) != nullptr;
  };
  for (const job::OrderRule& rule : job::rules().order) {
    CHECK(exists(rule.smaller));
    CHECK(exists(rule.larger));
  }
  for (const job::EffectRule& rule : job::rules().effect) {
    CHECK(exists(rule.key));
    CHECK(exists(rule.other));
  }
  for (const job::KeysOfSection& rule : job::rules().exclusive) {
    for (const std::string& key : rule.keys) {
      CHECK(exists({rule.section, key}));
    }
  }
}

TEST_CASE("every rule about contents names existing keys", "[job]") {
  const auto exists = [](const std::string& section, const std::string& key) {
    const job::Section& found = job::section_named(section);
    return key.empty() || job::find_setting(found, key) != nullptr;
  };
  for (const job::KeysOfSection& rule : job::rules().content) {
    for (const std::string& key : rule.keys) {
      CHECK(exists(rule.section, key));
    }
  }
  for (const job::NeedRule& rule : job::rules().need) {
    CHECK(exists(rule.key.section, rule.key.key));
    for (const job::KeyName& other : rule.others) {
      CHECK(exists(other.section, other.key));
    }
  }
}

TEST_CASE("options of a plugin are described like those of the schema", "[job]") {
  CHECK(job::options_reference({{.name = "zero",
                                 .type = OptionType::integer,
                                 .default_value = "0",
                                 .minimum = 0,
                                 .maximum = 3,
                                 .help = "Stage."}}) ==
        "  zero                an integer, at least 0 and at most 3; default 0\n      Stage.\n");
}
