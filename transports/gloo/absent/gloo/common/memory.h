#pragma once

/// Debian's package of Gloo lacks this header, which its transport/tcp/pair.h includes. These declarations match those
/// that the library was built with in size and members: each class is one smart pointer. The compiler finds this file
/// only where Gloo has none.

#include <memory>
#include <thread>

namespace gloo {

template <class T>
class WeakNonOwningPtr;
template <class T>
class ShareableNonOwningPtr;

/// Keeps an object from being destroyed for a while; empty where it no longer exists.
template <class T>
class NonOwningPtr final {
 public:
  NonOwningPtr() = default;
  explicit NonOwningPtr(const WeakNonOwningPtr<T>& weak) : ptr_(weak.ptr_.lock()) {}

  T* operator->() const noexcept { return ptr_.get(); }
  explicit operator bool() const noexcept { return ptr_ != nullptr; }

 private:
  std::shared_ptr<T> ptr_;
};

/// Refers to an object that may no longer exist.
template <class T>
class WeakNonOwningPtr final {
 public:
  WeakNonOwningPtr() = default;
  explicit WeakNonOwningPtr(const ShareableNonOwningPtr<T>& owner) : ptr_(owner.ptr_) {}

  /// Whether it ever referred to one.
  explicit operator bool() const noexcept {
    const std::weak_ptr<T> none;
    return ptr_.owner_before(none) || none.owner_before(ptr_);
  }

 private:
  friend class NonOwningPtr<T>;

  std::weak_ptr<T> ptr_;
};

/// Part of an object that others refer to. Its destructor waits until no one keeps the object.
template <class T>
class ShareableNonOwningPtr final {
 public:
  explicit ShareableNonOwningPtr(T* object) : ptr_(object, [](void*) {}) {}
  ShareableNonOwningPtr(const ShareableNonOwningPtr&) = delete;
  ShareableNonOwningPtr& operator=(const ShareableNonOwningPtr&) = delete;
  ~ShareableNonOwningPtr() {
    const std::weak_ptr<T> weak(ptr_);
    ptr_.reset();
    while (!weak.expired()) {
      std::this_thread::yield();
    }
  }

 private:
  friend class WeakNonOwningPtr<T>;

  std::shared_ptr<T> ptr_;
};

}  // namespace gloo
