#include "core/base/id.h"

#include <map>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <unordered_set>

#include "tests/support/catch.h"

using namespace shardrun;

namespace {

using AppleId = Id<struct AppleTag>;
using PearId = Id<struct PearTag>;
using Apples = IdVector<AppleId, std::string>;

template <typename Vector, typename Index>
concept Indexed = requires(Vector vector, Index index) {
  vector[index];
};

template <typename A, typename B>
concept Comparable = requires(A a, B b) {
  a < b || a == b;
};

static_assert(!std::is_convertible_v<AppleId, PearId>);
static_assert(!std::is_constructible_v<AppleId, PearId>);
static_assert(!std::is_convertible_v<int, AppleId>);
static_assert(!std::is_convertible_v<AppleId, int>);
static_assert(std::is_constructible_v<AppleId, std::size_t>);
static_assert(Comparable<AppleId, AppleId>);
static_assert(!Comparable<AppleId, PearId>);
static_assert(!Comparable<AppleId, int>);
static_assert(Indexed<Apples, AppleId>);
static_assert(!Indexed<Apples, PearId>);
static_assert(!Indexed<Apples, int>);
static_assert(sizeof(AppleId) == sizeof(std::int32_t));

}  // namespace

TEST_CASE("a default id names nothing and sorts before all others", "[id]") {
  CHECK_FALSE(AppleId{}.exists());
  CHECK(AppleId{}.number() == -1);
  CHECK(AppleId(0).exists());
  CHECK(AppleId{} < AppleId(0));
  CHECK(AppleId(1) < AppleId(2));
  CHECK(AppleId(2U) == AppleId(std::int64_t{2}));
}

TEST_CASE("an id is a key of ordered and unordered containers", "[id]") {
  CHECK(std::map<AppleId, int>{{AppleId(3), 1}, {AppleId(2), 2}}.begin()->second == 2);
  CHECK(std::unordered_set<AppleId>{AppleId(3), AppleId(3), AppleId{}}.size() == 2);
}

TEST_CASE("a vector gives each added item the next id", "[id]") {
  Apples apples;
  CHECK(apples.next() == AppleId(0));
  CHECK(apples.push_back("red") == AppleId(0));
  CHECK(apples.push_back("green") == AppleId(1));
  CHECK(apples.next() == AppleId(2));
  CHECK(apples[AppleId(1)] == "green");
  CHECK(apples.at(AppleId(1)) == "green");
  CHECK_THROWS_AS(apples.at(AppleId{}), std::out_of_range);
  CHECK(apples.contains(AppleId(1)));
  CHECK_FALSE(apples.contains(AppleId(2)));
  CHECK_FALSE(apples.contains(AppleId{}));
}

TEST_CASE("ids are visited in order, up to an end", "[id]") {
  IdVector<AppleId, bool> visited(4);
  std::string order;
  for (const AppleId id : visited.ids()) {
    visited[id] = true;
    order += std::to_string(id.number());
  }
  for (const AppleId id : IdRange(AppleId(1), AppleId(3))) {
    order += std::to_string(id.number());
  }
  CHECK(order == "012312");
  CHECK(visited == IdVector<AppleId, bool>{true, true, true, true});
  CHECK(Apples{}.ids().begin() == Apples{}.ids().end());
}
