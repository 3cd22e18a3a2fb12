#include "transports/gloo/records.h"

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "tests/support/catch.h"

using namespace shardrun::gloo_transport;

namespace {

using Bytes = std::vector<std::uint8_t>;

const Key key = {1, 2, 3};

struct Record {
  Bytes bytes;
  Tag tag = {};
};

Bytes plain_of(std::size_t size) {
  Bytes plain(size);
  std::iota(plain.begin(), plain.end(), std::uint8_t{7});
  return plain;
}

Record sealed(Records& records, const Bytes& plain) {
  Record record{plain, {}};
  Bytes changed = plain;
  record.tag = records.seal(plain.data(), plain.size(), changed.data());
  if (records.protection() == Protection::encrypt) {
    record.bytes = changed;
  }
  return record;
}

bool opens(Records& records, Record& record) {
  return records.open(record.bytes.data(), record.bytes.size(), record.tag);
}

Protection either() { return GENERATE(Protection::integrity, Protection::encrypt); }

}  // namespace

TEST_CASE("gloo: records open in their order to what was sealed") {
  const Protection protection = either();
  Records sender(protection, key);
  Records receiver(protection, key);
  for (const std::size_t size : {std::size_t{1}, std::size_t{48}, std::size_t{1000}, record_bytes}) {
    const Bytes plain = plain_of(size);
    Record record = sealed(sender, plain);
    CHECK((record.bytes == plain) == (protection == Protection::integrity));
    CHECK(opens(receiver, record));
    CHECK(record.bytes == plain);
  }
}

TEST_CASE("gloo: a record with any bit altered does not open") {
  const Protection protection = either();
  const Bytes plain = plain_of(100);
  for (std::size_t bit = 0; bit < 8 * (plain.size() + sizeof(Tag)); ++bit) {
    INFO("bit " << bit);
    Records sender(protection, key);
    Records receiver(protection, key);
    Record record = sealed(sender, plain);
    const std::size_t byte = bit / 8;
    (byte < plain.size() ? record.bytes[byte] : record.tag[byte - plain.size()]) ^=
        static_cast<std::uint8_t>(1U << (bit % 8));
    CHECK_FALSE(opens(receiver, record));
  }
}

TEST_CASE("gloo: a record that is cut short, at any byte, does not open") {
  const Protection protection = either();
  const Bytes plain = plain_of(100);
  for (std::size_t size = 0; size < plain.size(); ++size) {
    INFO("bytes " << size);
    Records sender(protection, key);
    Records receiver(protection, key);
    Record record = sealed(sender, plain);
    record.bytes.resize(size);
    CHECK_FALSE(opens(receiver, record));
  }
}

TEST_CASE("gloo: a record opens once, in its place, in its direction and under its protection") {
  const Protection protection = either();
  const Protection other = protection == Protection::integrity ? Protection::encrypt : Protection::integrity;
  Records sender(protection, key);
  Record first = sealed(sender, plain_of(100));
  Record second = sealed(sender, plain_of(100));
  CHECK(first.tag != second.tag);
  SECTION("said again") {
    Records receiver(protection, key);
    Record again = first;
    CHECK(opens(receiver, first));
    CHECK_FALSE(opens(receiver, again));
  }
  SECTION("out of order") {
    Records receiver(protection, key);
    CHECK_FALSE(opens(receiver, second));
  }
  SECTION("left out") {
    Records receiver(protection, key);
    CHECK(opens(receiver, first));
    Record third = sealed(sender, plain_of(100));
    CHECK_FALSE(opens(receiver, third));
  }
  SECTION("said back to whom it came from") {
    Key back = key;
    back[0] ^= 1U;
    Records receiver(protection, back);
    CHECK_FALSE(opens(receiver, first));
  }
  SECTION("under the other protection") {
    Records receiver(other, key);
    CHECK_FALSE(opens(receiver, first));
  }
}

TEST_CASE("gloo: tags on the wire are counted by records") {
  CHECK(bytes_of_tags(Protection::none, 1000) == 0);
  CHECK(bytes_of_tags(Protection::integrity, 0) == 0);
  CHECK(bytes_of_tags(Protection::integrity, 1) == 16);
  CHECK(bytes_of_tags(Protection::integrity, record_bytes) == 16);
  CHECK(bytes_of_tags(Protection::encrypt, record_bytes + 1) == 32);
}
