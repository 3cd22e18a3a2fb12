#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>

#include "core/base/text.h"
#include "core/cli/options.h"
#include "core/cli/sharding.h"
#include "core/screen/progress.h"

namespace shardrun::cli {
namespace {

constexpr std::size_t usual_drawing_width = 80;

std::size_t terminal_width() {
  const screen::ProgressSink screen = screen::descriptor_sink(STDOUT_FILENO, std::getenv("TERM"));
  return screen.is_terminal ? screen.width() : usual_drawing_width;
}

int show_sharding(std::span<const std::string> words) {
  const Parsed parsed = parse("show-sharding", words, {set_option(), {.name = "json", .help = "print JSON"}}, 2, 2);
  if (parsed.help_shown) {
    return 0;
  }
  const job::Job job = read_job(parsed);
  const compile::Compiled compiled = compile::compile(job);
  const std::vector<PlacedTensor> tensors = find_tensors(compiled, parsed.positional[1]);
  const std::vector<RankPlace> places = places_of(job, compiled);
  if (parsed.has("json")) {
    fmt::print("{}", sharding_json(tensors, compiled, places));
    return 0;
  }
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    fmt::print("{}{}", t == 0 ? "" : "\n",
               printable_lines(sharding_text(tensors[t], compiled, places, terminal_width())));
  }
  return 0;
}

const RegisterCommand show_sharding_command(
    {.name = "show-sharding",
     .arguments = "JOB.ini TENSOR",
     .help = "who has which part of a parameter, gradient, moment, field, cut point, input or output; globs",
     .run = show_sharding});

}  // namespace
}  // namespace shardrun::cli
