#include <string>
#include <vector>

#include "core/cli/command.h"
#include "core/cli/process.h"

int main(int argc, char** argv) {
  shardrun::cli::secure_process();
  const std::vector<std::string> words(argv + 1, argv + argc);
  return shardrun::cli::main(words);
}
