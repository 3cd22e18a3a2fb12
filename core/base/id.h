#pragma once

#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <utility>
#include <vector>

namespace shardrun {

/// The number of a value, a node, a buffer, …: its index in the vector of all things of that kind. `Tag` distinguishes
/// the kinds, so that an id of one kind is never taken for another or for a count. A default id names nothing.
template <typename Tag>
class Id {
 public:
  constexpr Id() noexcept = default;
  template <std::integral Number>
  constexpr explicit Id(Number number) noexcept : number_(static_cast<std::int32_t>(number)) {}

  /// Whether the id names something. Id 0 does.
  [[nodiscard]] constexpr bool exists() const noexcept { return number_ >= 0; }
  /// The number; −1 if the id names nothing.
  [[nodiscard]] constexpr std::int32_t number() const noexcept { return number_; }
  /// REQUIRES: exists().
  [[nodiscard]] constexpr std::size_t index() const noexcept { return static_cast<std::size_t>(number_); }

  constexpr auto operator<=>(const Id&) const noexcept = default;

 private:
  std::int32_t number_ = -1;
};

/// The ids from `begin` up to, but not including, `end`: `for (const NodeId n : function.nodes.ids())`. Empty if `end`
/// lies before `begin`, or names nothing.
template <typename Key>
class IdRange {
 public:
  class Iterator {
   public:
    using value_type = Key;
    using difference_type = std::ptrdiff_t;
    using iterator_category = std::input_iterator_tag;
    using pointer = const Key*;
    using reference = Key;

    constexpr Iterator() noexcept = default;
    constexpr explicit Iterator(std::size_t number) noexcept : number_(number) {}
    constexpr Key operator*() const noexcept { return Key(number_); }
    constexpr Iterator& operator++() noexcept {
      ++number_;
      return *this;
    }
    constexpr Iterator operator++(int) noexcept { return Iterator(number_++); }
    constexpr bool operator==(const Iterator&) const noexcept = default;

   private:
    std::size_t number_ = 0;
  };

  /// REQUIRES: begin.exists().
  constexpr IdRange(Key begin, Key end) noexcept
      : begin_(begin.index()), end_(end < begin ? begin.index() : end.index()) {}
  [[nodiscard]] constexpr Iterator begin() const noexcept { return Iterator(begin_); }
  [[nodiscard]] constexpr Iterator end() const noexcept { return Iterator(end_); }

 private:
  std::size_t begin_;
  std::size_t end_;
};

/// A vector whose index is an id. It holds all things of one kind, or one fact about each of them.
template <typename Key, typename T>
class IdVector {
 public:
  using value_type = T;
  using reference = typename std::vector<T>::reference;
  using const_reference = typename std::vector<T>::const_reference;
  using iterator = typename std::vector<T>::iterator;
  using const_iterator = typename std::vector<T>::const_iterator;

  IdVector() = default;
  explicit IdVector(std::size_t size, const T& value = T()) : items_(size, value) {}
  IdVector(std::initializer_list<T> items) : items_(items) {}
  explicit IdVector(std::vector<T> items) noexcept : items_(std::move(items)) {}

  [[nodiscard]] reference operator[](Key id) { return items_[id.index()]; }
  [[nodiscard]] const_reference operator[](Key id) const { return items_[id.index()]; }
  [[nodiscard]] reference at(Key id) { return items_.at(id.index()); }
  [[nodiscard]] const_reference at(Key id) const { return items_.at(id.index()); }

  /// Adds an item and returns its id.
  Key push_back(T item) {
    items_.push_back(std::move(item));
    return Key(items_.size() - 1);
  }

  [[nodiscard]] reference front() { return items_.front(); }
  [[nodiscard]] const_reference front() const { return items_.front(); }
  [[nodiscard]] reference back() { return items_.back(); }
  [[nodiscard]] const_reference back() const { return items_.back(); }
  [[nodiscard]] iterator begin() noexcept { return items_.begin(); }
  [[nodiscard]] iterator end() noexcept { return items_.end(); }
  [[nodiscard]] const_iterator begin() const noexcept { return items_.begin(); }
  [[nodiscard]] const_iterator end() const noexcept { return items_.end(); }
  [[nodiscard]] std::size_t size() const noexcept { return items_.size(); }
  [[nodiscard]] bool empty() const noexcept { return items_.empty(); }

  void reserve(std::size_t size) { items_.reserve(size); }
  void resize(std::size_t size) { items_.resize(size); }
  void assign(std::size_t size, const T& value) { items_.assign(size, value); }
  void clear() noexcept { items_.clear(); }

  /// The ids of all items, in order.
  [[nodiscard]] IdRange<Key> ids() const noexcept { return {Key(0), next()}; }
  /// The id that the next added item gets.
  [[nodiscard]] Key next() const noexcept { return Key(items_.size()); }
  [[nodiscard]] bool contains(Key id) const noexcept { return id.exists() && id.index() < items_.size(); }

  bool operator==(const IdVector&) const = default;

 private:
  std::vector<T> items_;
};

}  // namespace shardrun

template <typename Tag>
struct std::hash<shardrun::Id<Tag>> {
  std::size_t operator()(shardrun::Id<Tag> id) const noexcept { return std::hash<std::int32_t>()(id.number()); }
};
