#include "core/serve/server.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <string>

#include "core/base/error.h"
#include "core/base/standard_error.h"
#include "core/base/text.h"
#include "core/cli/applied_job.h"
#include "core/cli/options.h"
#include "core/files/descriptor.h"
#include "core/files/mapped_file.h"

namespace shardrun::cli {
namespace {

constexpr const char* token_variable = "SHARDRUN_SERVE_TOKEN";
constexpr std::size_t most_token_bytes = 4096;
constexpr std::size_t most_line_bytes = 2000;  ///< size of the longest line of the log

std::vector<OptionSyntax> serve_options() {
  std::vector<OptionSyntax> options = {
      {.name = "host", .value = "ADDRESS", .help = "the address to listen at (default 127.0.0.1)"},
      {.name = "port", .value = "N", .help = "the port to listen at (default 8080); 0: any free one, which is printed"},
      {.name = "socket", .value = "PATH", .help = "a Unix socket to listen at, in place of --host and --port"},
      {.name = "token-file",
       .value = "FILE",
       .help = "holds the token that clients must send (default: SHARDRUN_SERVE_TOKEN of the environment, or none)"},
      {.name = "open", .help = "serve other hosts without a token"},
      {.name = "tls-certificate", .value = "FILE", .help = "serve https with this certificate (PEM), and --tls-key"},
      {.name = "tls-key", .value = "FILE", .help = "its key (PEM)"},
      {.name = "name", .value = "TEXT", .help = "the model's name for clients (default: that of the file or folder)"},
      {.name = "queue",
       .value = "N",
       .help = "prompts that may wait beside those in slots; others get status 429 (default 64)"},
      {.name = "timeout", .value = "SECONDS", .help = "the time for a whole answer (default 600)"},
      {.name = "drain",
       .value = "SECONDS",
       .help = "the time for answers in work after SIGINT or SIGTERM (default 30)"},
      {.name = "max-body", .value = "BYTES", .help = "the largest request (default 4194304)"},
      {.name = "log", .value = "FILE", .help = "appends a line for each request (default: standard error)"},
      {.name = "tokens",
       .value = "N",
       .help = "the most tokens of an answer whose request names no number (default: as many as the context leaves)"},
      {.name = "slots",
       .value = "N",
       .help =
           "prompts that are continued at once (default 8); auto: as many as --set cluster.memory=BYTES has room for"},
      {.name = "context",
       .value = "N",
       .help =
           "the most tokens of a prompt and its answer (default: the model's, of folders and GGUF files at most 1024)"},
      set_option()};
  std::ranges::move(generating_options(), std::back_inserter(options));
  return options;
}

std::string token_of(const Parsed& parsed) {
  const char* const variable = std::getenv(token_variable);
  std::string token = variable == nullptr ? "" : variable;
  if (const std::optional<std::string> file = parsed.get("token-file")) {
    token = files::read_text_file(*file, most_token_bytes);
    token.erase(token.find_last_not_of(" \t\r\n") + 1);
    if (token.empty()) {
      throw Error(ErrorCode::usage, fmt::format("--token-file {}: the file is empty: write a token to it", *file));
    }
  }
  ::unsetenv(token_variable);  // the job needs none
  return token;
}

void require_alone(const Parsed& parsed, std::string_view option, std::initializer_list<const char*> others) {
  for (const char* const other : others) {
    if (parsed.has(option) && parsed.has(other)) {
      throw Error(ErrorCode::usage,
                  fmt::format("--{} and --{} contradict each other: leave out one of them", option, other));
    }
  }
}

serve::ServerSettings server_settings(const Parsed& parsed) {
  require_alone(parsed, "socket", {"host", "port", "tls-certificate"});
  require_alone(parsed, "open", {"token-file"});
  if (parsed.has("tls-certificate") != parsed.has("tls-key")) {
    throw Error(ErrorCode::usage, "--tls-certificate and --tls-key belong together: give both");
  }
  constexpr std::int64_t most_seconds = 1'000'000;
  std::filesystem::path named = std::filesystem::absolute(parsed.positional[0]).lexically_normal();
  named = named.has_filename() ? named : named.parent_path();
  std::error_code none;
  named = std::filesystem::is_directory(named, none) ? named.filename() : named.stem();
  return {.name = parsed.get("name").value_or(named.string()),
          .host = parsed.get("host").value_or("127.0.0.1"),
          .port = static_cast<std::uint16_t>(parsed.integer("port", 8080, 0, 65535)),
          .socket = parsed.get("socket").value_or(""),
          .token = token_of(parsed),
          .is_open = parsed.has("open"),
          .certificate = parsed.get("tls-certificate").value_or(""),
          .key = parsed.get("tls-key").value_or(""),
          .queue = static_cast<std::size_t>(parsed.integer("queue", 64, 1, 1'000'000)),
          .timeout = std::chrono::seconds(parsed.integer("timeout", 600, 1, most_seconds)),
          .drain = std::chrono::seconds(parsed.integer("drain", 30, 0, most_seconds)),
          .most_body_bytes = static_cast<std::size_t>(parsed.integer("max-body", 1 << 22, 1024, 1 << 30))};
}

/// Writes lines with the time. Text that clients have sent cannot control a terminal.
class ServeLog {
 public:
  explicit ServeLog(const std::optional<std::string>& path) {
    if (path) {
      file_ = files::FileDescriptor(::open(path->c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
      if (!file_.is_open()) {
        throw files::unwritable("open", *path, errno);
      }
    }
  }

  void write(std::string_view line, bool is_access) const {
    const std::string whole =
        fmt::format("{:%Y-%m-%dT%H:%M:%SZ} {}\n",
                    fmt::gmtime(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())),
                    printable(line.substr(0, most_line_bytes)));
    if (!is_access || !file_.is_open()) {
      pollfd reader = {.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
      if (::poll(&reader, 1, 0) == 1) {  // clients do not wait for a reader of the log
        write_to_standard_error(whole, Patience::brief);
      }
    } else {
      [[maybe_unused]] const ssize_t written = ::write(file_.get(), whole.data(), whole.size());
    }
  }

 private:
  files::FileDescriptor file_;
};

int serve_command(std::span<const std::string> words) {
  const Parsed parsed = parse("serve", words, serve_options(), 1, 1);
  if (parsed.help_shown) {
    return 0;
  }
  serve::ServerSettings settings = server_settings(parsed);
  static_cast<void>(parsed.integer("tokens", 1, 1, 1 << 30));
  const EventJob job(parsed, "serve", {{"infer.tokens", fmt::format("{}", 1 << 30)}, {"infer.temperature", "1"}});
  settings.job = job.words();
  if (job.language().tokenizer() == nullptr) {
    write_to_standard_error(fmt::format("'{}' has no tokenizer: prompts and answers are lists of tokens\n",
                                        printable(parsed.positional[0])));
  }
  const ServeLog log(parsed.get("log"));
  settings.log = [&](std::string_view line, bool is_access) { log.write(line, is_access); };
  settings.listens = [&](const std::string& address) {
    fmt::print("serving {} at {}\n", printable(settings.name), printable(address));
    std::fflush(stdout);
  };
  return serve::serve(settings, job.language());
}

const RegisterCommand serve_registered({.name = "serve",
                                        .arguments = "JOB|FOLDER|RUN|FILE.gguf",
                                        .help = "answer prompts over HTTP, with OpenAI's interface",
                                        .run = serve_command});

}  // namespace
}  // namespace shardrun::cli
