// Runs a fuzz target over each input of a corpus, so that every build tries what a fuzzer once found. libFuzzer reads
// and writes folders: `unpack` makes one of the corpus, `add` appends files to the corpus.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>

#include "tests/support/sections.h"
#include "tests/support/temporary_folder.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using namespace shardrun;

std::string bytes_of(const test::Section& section) {
  std::string bytes;
  for (const std::string& line : section.lines) {
    bytes += test::unescaped(line);
  }
  return bytes;
}

void replay(const std::filesystem::path& corpus) {
  const std::vector<test::Section> sections = test::read_sections(corpus);
  for (const test::Section& section : sections) {
    const std::string bytes = bytes_of(section);
    std::printf("%s\n", section.name.c_str());
    std::fflush(stdout);
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  }
  std::printf("%zu inputs\n", sections.size());
}

void unpack(const std::filesystem::path& corpus, const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  for (const test::Section& section : test::read_sections(corpus)) {
    test::write_file(folder / section.name, bytes_of(section));
  }
}

void add(const std::filesystem::path& corpus, std::span<char*> files) {
  std::ofstream out(corpus, std::ios::binary | std::ios::app);
  for (const std::filesystem::path file : files) {
    out << "=== " << file.filename().string() << '\n' << test::escaped(test::read_file(file));
  }
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
