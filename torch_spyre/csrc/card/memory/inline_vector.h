// A vector of at most N elements that lives where it is declared: planning a small copy must not
// touch the heap. Pushing one element too many throws std::length_error.
#pragma once

#include <stdexcept>

namespace spyre::card {

template <class T, int N>
class InlineVector {
 public:
  InlineVector() = default;
  // Copies what is in use only; most vectors are far from full.
  InlineVector(const InlineVector& other) { *this = other; }
  InlineVector& operator=(const InlineVector& other) {
    size_ = other.size_;
    for (int i = 0; i < size_; ++i) items_[i] = other.items_[i];
    return *this;
  }

  void push_back(const T& value) {
    if (size_ == N) throw std::length_error("too many dimensions for a copy");
    items_[size_++] = value;
  }
  void insert(int at, const T& value) {
    push_back(value);
    for (int i = size_ - 1; i > at; --i) items_[i] = items_[i - 1];
    items_[at] = value;
  }
  void erase(int at) {
    for (int i = at; i + 1 < size_; ++i) items_[i] = items_[i + 1];
    --size_;
  }

  int size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T& operator[](int i) { return items_[i]; }
  const T& operator[](int i) const { return items_[i]; }
  T& back() { return items_[size_ - 1]; }
  T* begin() { return items_; }
  T* end() { return items_ + size_; }
  const T* begin() const { return items_; }
  const T* end() const { return items_ + size_; }

 private:
  // Left uninitialised on purpose: only [0, size_) is ever read.
  T items_[N];
  int size_ = 0;
};

}  // namespace spyre::card
