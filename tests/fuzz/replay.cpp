// Runs a fuzz target over each input of a corpus, so that every build tries the inputs that a fuzzer once found. A
// corpus begins with the number of its inputs; each line has a name and an input. libFuzzer reads and writes folders:
// `unpack` makes a folder from the corpus, `add` appends files to the corpus.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/escapes.h"
#include "tests/support/temporary_folder.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using namespace shardrun;

struct Input {
  std::string name;
  std::string bytes;
};

constexpr const char* head_end =
    " inputs that a fuzzer once found: a line is a name and an input. \\n is a newline, \\xHH a byte, \\\\ a "
    "backslash.";

std::string head_of(std::size_t inputs) { return "# " + std::to_string(inputs) + head_end; }

/// Throws std::runtime_error for a truncated file.
std::vector<Input> inputs_of(const std::filesystem::path& corpus) {
  std::ifstream file(corpus);
  std::string head;
  std::getline(file, head);
  std::vector<Input> inputs;
  for (std::string line; std::getline(file, line);) {
    const std::size_t blank = line.find(' ');
    if (blank == std::string::npos || file.eof()) {
      throw std::runtime_error(corpus.string() + ": expected a name, a blank, an input and a newline, not " + line);
    }
    inputs.push_back({line.substr(0, blank), test::unescaped(line.substr(blank + 1))});
  }
  if (inputs.empty() || head != head_of(inputs.size())) {
    throw std::runtime_error(corpus.string() + " has " + std::to_string(inputs.size()) + " inputs and begins with '" +
                             head + "'");
  }
  return inputs;
}

void replay(const std::filesystem::path& corpus) {
  const std::vector<Input> inputs = inputs_of(corpus);
  for (const Input& input : inputs) {
    std::printf("%s\n", input.name.c_str());
    std::fflush(stdout);
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.bytes.data()), input.bytes.size());
  }
  std::printf("%zu inputs\n", inputs.size());
}

void unpack(const std::filesystem::path& corpus, const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  for (const Input& input : inputs_of(corpus)) {
    test::write_file(folder / input.name, input.bytes);
  }
}

void add(const std::filesystem::path& corpus, std::span<char*> files) {
  std::vector<Input> inputs = inputs_of(corpus);
  for (const std::filesystem::path file : files) {
    inputs.push_back({file.filename().string(), test::read_file(file)});
  }
  std::string text = head_of(inputs.size()) + "\n";
  for (const Input& input : inputs) {
    text += input.name + ' ' + test::escaped(input.bytes) + '\n';
  }
  test::write_file(corpus, text);
}

}  // namespace

int main(int argc, char** argv) {
  const std::span<char*> words(argv, static_cast<std::size_t>(argc));
  try {
    if (words.size() == 2) {
      replay(words[1]);
    } else if (words.size() == 4 && words[2] == std::string("unpack")) {
      unpack(words[1], words[3]);
    } else if (words.size() > 3 && words[2] == std::string("add")) {
      add(words[1], words.subspan(3));
    } else {
      std::fputs("usage: replay CORPUS [unpack FOLDER | add FILE...]\n", stderr);
      return 2;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
