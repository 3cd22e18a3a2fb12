// Reads any bytes as a checkpoint's manifest. Its hash would refuse almost all of them, so each text is also read with
// a hash that fits. Nothing but shardrun::Error may be thrown. A manifest that is accepted is the same when it is
// written and read again.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/checkpoint/manifest.h"
#include "core/files/hash.h"

using namespace shardrun;

namespace {

void fail_with(const char* what, const std::string& text) {
  std::fprintf(stderr, "%s\n%s\n", what, text.c_str());
  std::abort();
}

void read_manifest_text(const std::string& text) {
  try {
    const checkpoint::Manifest manifest = checkpoint::parse_manifest(text, "fuzz.json");
    if (checkpoint::parse_manifest(checkpoint::to_json(manifest), "copy.json") != manifest) {
      fail_with("a manifest that was written says another thing", text);
    }
    for (const checkpoint::StoredFile& file : manifest.files) {
      if (file.name.find('/') != std::string::npos) {
        fail_with("a file's name leads elsewhere", file.name);
      }
    }
  } catch (const Error& error) {
    if (error.message().find("fuzz.json") == std::string::npos) {
      fail_with("a message does not name the file", error.message());
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  read_manifest_text(text);
  const std::string rest = text.starts_with('{') ? text.substr(1) : text;
  read_manifest_text("{\"xxh3\":\"" + to_string(files::hash_of(rest)) + "\"," + rest);
  return 0;
}
