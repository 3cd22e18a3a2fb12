#include "core/metrics/other_formats.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace shardrun::metrics;
using namespace shardrun::test;

namespace {

/// A message of protocol buffers: of each field its values, numbers as bits, and texts and messages as bytes.
struct Message {
  std::map<unsigned, std::vector<std::uint64_t>> numbers;
  std::map<unsigned, std::vector<std::string>> bytes;

  explicit Message(std::string_view text) {
    while (!text.empty()) {
      const std::uint64_t key = varint(text);
      const auto field = static_cast<unsigned>(key >> 3U);
      switch (key & 7U) {
        case 0: numbers[field].push_back(varint(text)); break;
        case 1: numbers[field].push_back(fixed(text, 8)); break;
        case 5: numbers[field].push_back(fixed(text, 4)); break;
        case 2: {
          const std::uint64_t size = varint(text);
          REQUIRE(size <= text.size());
          bytes[field].emplace_back(text.substr(0, size));
          text.remove_prefix(size);
          break;
        }
        default: FAIL("a type of field that nobody writes");
      }
    }
  }

  [[nodiscard]] double real(unsigned field) const { return std::bit_cast<double>(numbers.at(field).at(0)); }
  [[nodiscard]] float single(unsigned field) const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(numbers.at(field).at(0)));
  }
  [[nodiscard]] Message message(unsigned field, std::size_t at = 0) const { return Message(bytes.at(field).at(at)); }

  static std::uint64_t fixed(std::string_view& text, std::size_t size) {
    REQUIRE(text.size() >= size);
    std::uint64_t number = 0;
    std::memcpy(&number, text.data(), size);  // of a little-endian machine
    text.remove_prefix(size);
    return number;
  }
  static std::uint64_t varint(std::string_view& text) {
    std::uint64_t number = 0;
    for (unsigned shift = 0;; shift += 7) {
      REQUIRE(!text.empty());
      const auto byte = static_cast<unsigned char>(text.front());
      text.remove_prefix(1);
      number |= std::uint64_t{byte & 127U} << shift;
      if (byte < 128) {
        return number;
      }
    }
  }
};

std::filesystem::path only_file(const std::filesystem::path& folder) {
  REQUIRE(files_in(folder) == 1);
  return std::filesystem::directory_iterator(folder)->path();
}

/// The events of a file, whose frames are checked.
std::vector<Message> events_of(std::string_view bytes) {
  const auto masked = [](std::string_view text) { return std::rotr(crc32c(text), 15) + 0xa282ead8U; };
  std::vector<Message> events;
  while (!bytes.empty()) {
    const std::string_view header = bytes.substr(0, 8);
    const std::uint64_t size = Message::fixed(bytes, 8);
    REQUIRE(Message::fixed(bytes, 4) == masked(header));
    REQUIRE(bytes.size() >= size + 4);
    const std::string_view data = bytes.substr(0, size);
    bytes.remove_prefix(size);
    REQUIRE(Message::fixed(bytes, 4) == masked(data));
    events.emplace_back(data);
  }
  return events;
}

}  // namespace

TEST_CASE("CRC-32C has the values of its known vectors", "[metrics]") {
  CHECK(crc32c("") == 0);
  CHECK(crc32c("123456789") == 0xe3069283U);
  // RFC 3720, B.4
  CHECK(crc32c(std::string(32, '\0')) == 0x8a9136aaU);
  CHECK(crc32c(std::string(32, '\xff')) == 0x62a8ab43U);
}

TEST_CASE("a file of events begins with its version, with the step from which it goes on, and with the job",
          "[metrics]") {
  const TemporaryFolder folder;
  const EventFile file(folder.path(), 100, "[job]\nranks = 2\n");

  const std::filesystem::path path = only_file(folder.path());
  CHECK(path.filename().native().starts_with("events.out.tfevents."));
  const std::string bytes = read_file(path);
  // The first record of every such file has 24 bytes, and so its length and the checksum of that are always these.
  CHECK(bytes.starts_with(std::string("\x18\0\0\0\0\0\0\0\xa3\x7f\x4b\x22", 12)));
  const std::vector<Message> events = events_of(bytes);
  REQUIRE(events.size() == 3);
  CHECK(events[0].bytes.at(3).at(0) == "brain.Event:2");
  CHECK(events[0].real(1) > 1.7e9);
  CHECK(events[1].message(7).numbers.at(1).at(0) == 1);  // SessionLog.START
  CHECK(events[1].numbers.at(2).at(0) == 101);
  const Message value = events[2].message(5).message(1);
  CHECK(value.bytes.at(1).at(0) == "job");
  CHECK(value.message(9).message(1).bytes.at(1).at(0) == "text");
  CHECK(value.message(8).numbers.at(1).at(0) == 7);  // DT_STRING
  CHECK(value.message(8).bytes.at(8).at(0) == "    [job]\n    ranks = 2\n    ");
}

TEST_CASE("a step is one event with a scalar for each number", "[metrics]") {
  const TemporaryFolder folder;
  EventFile file(folder.path(), 0, "");

  file.write(std::vector<JsonField>{{"step", std::int64_t{300}}, {"loss", 0.1}, {"lr", std::nan("")}, {"other", 1.0}});
  file.write(std::vector<JsonField>{{"step", std::int64_t{300}}, {"val_loss", 1e-300}});

  const std::vector<Message> events = events_of(read_file(only_file(folder.path())));
  REQUIRE(events.size() == 5);
  CHECK(events[3].numbers.at(2).at(0) == 300);
  const Message summary = events[3].message(5);
  REQUIRE(summary.bytes.at(1).size() == 2);
  CHECK(summary.message(1, 0).bytes.at(1).at(0) == "loss");
  CHECK(summary.message(1, 0).single(2) == 0.1F);
  CHECK(summary.message(1, 1).bytes.at(1).at(0) == "learning rate");
  CHECK(std::isnan(summary.message(1, 1).single(2)));
  CHECK(events[4].message(5).message(1).bytes.at(1).at(0) == "validation loss");
}

TEST_CASE("every number of a line has a tag of its own", "[metrics]") {
  std::set<std::string_view> tags;
  for (const std::string_view field : training_fields) {
    tags.insert(tag_of(field));
  }
  CHECK(tags.size() == training_fields.size());
  CHECK(tag_of("step").empty());
}
