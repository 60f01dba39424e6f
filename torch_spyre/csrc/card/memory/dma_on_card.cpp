// copy_on_card: moves bytes between two storages of the card, from one tiling to another.
//
// Where both sides are tiled differently the view is cut into chunks that fit the L2 cache; a chunk
// is read into row-major staging memory and written from there. So each tiling is dealt with on its
// own, by the same code that serves the host.
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "memory/dma.h"
#include "memory/transfer.h"

namespace spyre::card {
namespace {

constexpr int64_t kStageBytes = 128 * 1024;
constexpr int64_t kChunkSide = 256;  // along the dimensions in which a side is contiguous

void check_sides(const MappedCard& src, const View& src_view, const MappedCard& dst,
                 const View& dst_view) {
  if (src_view.sizes != dst_view.sizes || src_view.strides.size() != src_view.sizes.size() ||
      dst_view.strides.size() != dst_view.sizes.size()) {
    throw std::invalid_argument("a copy on the card needs two views of the same sizes");
  }
  if (src.elem_bytes != dst.elem_bytes) {
    throw std::invalid_argument("a copy on the card moves bytes: elements of " +
                                std::to_string(src.elem_bytes) + " and " +
                                std::to_string(dst.elem_bytes) + " bytes do not match");
  }
}

// Untiled card memory is strided like memory of the host.
Strided strided_card(const MappedCard& card, const View& view) {
  return {card.base + view.offset * card.elem_bytes, view.strides, card.elem_bytes,
          copy_of(card.elem_bytes)};
}

bool same_view(const View& a, const View& b) {
  return a.sizes == b.sizes && a.strides == b.strides && a.offset == b.offset;
}

bool same_placement(const MappedCard& a, const MappedCard& b) {
  return a.placement->layout == b.placement->layout && a.placement->sizes == b.placement->sizes &&
         a.placement->strides == b.placement->strides;
}

bool fills_the_device(const Placement& placement, const View& view) {
  return num_elements(view) == placement.layout.num_elements() && view.offset == 0 &&
         view.sizes == placement.sizes && view.strides == placement.strides;
}

void copy_all_bytes(const MappedCard& src, const MappedCard& dst, int64_t bytes, ThreadPool* pool) {
  constexpr int64_t kPiece = 256 * 1024;
  const int64_t pieces = (bytes + kPiece - 1) / kPiece;
  share_units(pieces, bytes / src.elem_bytes, pool, [&](int64_t first, int64_t last) {
    const int64_t begin = first * kPiece, end = std::min(last * kPiece, bytes);
    std::memcpy(dst.base + begin, src.base + begin, end - begin);
  });
}

// Elements have the same place on both sides. Padding is left alone.
void copy_same_places(const MappedCard& src, const MappedCard& dst, const View& view,
                      ThreadPool* pool) {
  const CopyPlan plan =
      make_copy_plan(src.map, view, view.strides, Replicas::FIRST_ONLY, src.elem_bytes);
  const int64_t bytes = src.elem_bytes;
  const int64_t row_pitch = plan.row.stepping.device_step * bytes;
  const int64_t col_pitch = plan.col.stepping.device_step * bytes;
  const ConvertRows copy_rows =
      convert_table(best_simd()).to_card[static_cast<int>(copy_of(bytes))];
  share_units(plan.units(), plan.elements, pool, [&](int64_t first, int64_t last) {
    BoxWalker(plan, src.map).walk(first, last, [&](const Box& box) {
      std::byte* to = dst.base + box.device * bytes;
      const std::byte* from = src.base + box.device * bytes;
      if (col_pitch == bytes) {
        copy_rows(to, row_pitch, from, row_pitch, box.rows, box.cols, Stores::CACHED);
        return;
      }
      for (int64_t r = 0; r < box.rows; ++r) {
        copy_strided(to + r * row_pitch, col_pitch, from + r * row_pitch, col_pitch, box.cols,
                     bytes);
      }
    });
  });
}

// The dimension along which the card is contiguous, or -1.
int contiguous_dim(const MappedCard& card, const View& view) {
  for (size_t d = 0; d < view.sizes.size(); ++d) {
    if (view.sizes[d] > 1 && stepping(card.map, view.strides[d]).device_step == 1) {
      return static_cast<int>(d);
    }
  }
  return -1;
}

// How a view is cut into chunks, and how a chunk lies in staging memory.
struct Staging {
  Dims chunk;    // sizes
  Dims strides;  // of a staged chunk, contiguous along what is contiguous in the source
  int64_t chunks = 1;
};

Staging make_staging(const MappedCard& src, const View& src_view, const MappedCard& dst,
                     const View& dst_view) {
  const Dims& sizes = src_view.sizes;
  const int rank = static_cast<int>(sizes.size());
  Staging staging{Dims(rank, 1), Dims(rank, 0), 1};
  int64_t room = kStageBytes / src.elem_bytes;  // elements
  int64_t stride = 1;
  const auto take = [&](int dim, int64_t limit) {
    if (dim < 0 || staging.strides[dim] != 0) return;
    staging.chunk[dim] = std::min({sizes[dim], limit, room});
    staging.strides[dim] = stride;
    stride *= staging.chunk[dim];
    room /= staging.chunk[dim];
  };
  take(contiguous_dim(src, src_view), kChunkSide);
  take(contiguous_dim(dst, dst_view), kChunkSide);
  for (int d = rank - 1; d >= 0; --d) take(d, room);
  for (int d = 0; d < rank; ++d) {
    staging.chunks *= (sizes[d] + staging.chunk[d] - 1) / staging.chunk[d];
  }
  return staging;
}

// Sets the sizes of chunk number `index` and the offsets of its first element in both views.
void select_chunk(const Staging& staging, const View& src_view, const View& dst_view, int64_t index,
                  View& src_chunk, View& dst_chunk) {
  src_chunk.offset = src_view.offset;
  dst_chunk.offset = dst_view.offset;
  for (int d = static_cast<int>(staging.chunk.size()) - 1; d >= 0; --d) {
    const int64_t size = src_view.sizes[d];
    const int64_t count = (size + staging.chunk[d] - 1) / staging.chunk[d];
    const int64_t begin = index % count * staging.chunk[d];
    index /= count;
    src_chunk.sizes[d] = dst_chunk.sizes[d] = std::min(staging.chunk[d], size - begin);
    src_chunk.offset += begin * src_view.strides[d];
    dst_chunk.offset += begin * dst_view.strides[d];
  }
}

void copy_staged(const MappedCard& src, const View& src_view, const MappedCard& dst,
                 const View& dst_view, ThreadPool* pool) {
  const Staging staging = make_staging(src, src_view, dst, dst_view);
  const int64_t elements = num_elements(src_view);
  const Stores stores = stores_for(elements * dst.elem_bytes);
  share_units(staging.chunks, elements, pool, [&](int64_t first, int64_t last) {
    alignas(64) std::byte stage[kStageBytes];
    const Strided staged = {stage, staging.strides, src.elem_bytes, copy_of(src.elem_bytes)};
    View src_chunk = src_view, dst_chunk = dst_view;
    for (int64_t index = first; index < last; ++index) {
      select_chunk(staging, src_view, dst_view, index, src_chunk, dst_chunk);
      read_card(src, src_chunk, staged, Stores::CACHED, nullptr);
      (void)write_card(dst, dst_chunk, staged, stores, nullptr);  // bytes always fit
    }
  });
}

}  // namespace

void copy_mapped(const MappedCard& src, const View& src_view, const MappedCard& dst,
                 const View& dst_view, ThreadPool* pool) {
  const int64_t elements = num_elements(src_view);
  if (elements == 0) return;
  const Stores stores = stores_for(elements * src.elem_bytes);
  if (src.placement == nullptr) {
    (void)write_card(dst, dst_view, strided_card(src, src_view), stores,
                     pool);  // bytes always fit
  } else if (dst.placement == nullptr) {
    read_card(src, src_view, strided_card(dst, dst_view), stores, pool);
  } else if (same_placement(src, dst) && same_view(src_view, dst_view) &&
             src.map.replicas.empty()) {
    if (src.base == dst.base) return;
    if (fills_the_device(*src.placement, src_view)) {
      copy_all_bytes(src, dst, src.placement->layout.bytes(), pool);
    } else {
      copy_same_places(src, dst, src_view, pool);
    }
  } else {
    copy_staged(src, src_view, dst, dst_view, pool);
  }
}

void copy_on_card(const CardSide& src, const View& src_view, const CardSide& dst,
                  const View& dst_view, ThreadPool& pool) {
  const MappedCard from = map_card(src), to = map_card(dst);
  check_sides(from, src_view, to, dst_view);
  if (num_elements(src_view) == 0) return;
  check_view(from.map, src_view);
  check_view(to.map, dst_view);
  if (CopyObserver* observer = copy_observer()) {
    observer->card_copies(src, src_view, dst, dst_view);
  }
  copy_mapped(from, src_view, to, dst_view, &pool);
}

}  // namespace spyre::card
