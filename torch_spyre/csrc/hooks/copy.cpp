#include "hooks/copy.h"

#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/_conj_physical.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <atomic>

#include "eager/cast.h"
#include "eager/fallback.h"
#include "hooks/allocator.h"
#include "hooks/dtypes.h"
#include "hooks/hooks.h"
#include "hooks/integers.h"
#include "hooks/stream.h"

namespace spyre {
namespace {

std::atomic<int> g_downcast_warning{-1};  // -1: as the settings say
std::atomic<bool> g_downcast_warned{false};

card::View view_of(const at::Tensor& t) {
  return {t.sizes().vec(), t.strides().vec(), t.storage_offset()};
}

// True when DMA can address the tensor's elements where they lie.
bool addressable(const SpyreStorageImpl& storage, c10::ScalarType dtype) {
  return !storage.tiling || storage.tiling->dtype == dtype;
}

int64_t numel(const card::View& view) {
  int64_t n = 1;
  for (auto size : view.sizes) n *= size;
  return n;
}

// A storage that was made smaller than its tensors must not let them reach what lies after it.
// (For tiled storages the address map knows which elements have a place.)
void check_view(const SpyreStorageImpl& storage, const card::View& view, int64_t elem_bytes) {
  int64_t last = view.offset;
  for (size_t d = 0; d < view.sizes.size(); d++) last += (view.sizes[d] - 1) * view.strides[d];
  bool inside =
      storage.block() != nullptr &&
      (storage.tiling || (last + 1) * elem_bytes <= static_cast<int64_t>(storage.nbytes()));
  TORCH_CHECK(inside, "the tensor reaches beyond its storage, which has ", storage.nbytes(),
              " bytes: it was resized");
}

int64_t device_bytes_of(const SpyreStorageImpl& storage, const card::View& view,
                        int64_t elem_bytes) {
  int64_t bytes =
      storage.tiling ? card::bytes_per_elem(storage.tiling->placement.layout.format) : elem_bytes;
  return numel(view) * bytes;
}

card::Job transfer_job(SpyreStorageImpl& storage, const char* name, card::Engine engine,
                       int64_t bytes) {
  card::Job job;
  auto* block = storage.block();
  auto& card = get_card(static_cast<c10::DeviceIndex>(block->card));
  job.name = name;
  job.stream = current_stream_id(static_cast<c10::DeviceIndex>(block->card));
  job.engine = engine;
  job.device_us = card.hardware.transfer_us(bytes);
  job.uses = {block};
  return job;
}

card::Queue& queue_of(const SpyreStorageImpl& storage) {
  return get_card(static_cast<c10::DeviceIndex>(storage.block()->card)).queue;
}

card::HostSide host_side(const at::Tensor& host, bool tiled) {
  auto type = tiled ? host_type(host.scalar_type()) : card::HostType::RAW;
  return {const_cast<void*>(host.const_data_ptr()), type, host.strides().vec()};
}

bool is_whole_storage_bytes(const at::Tensor& t) {
  return t.scalar_type() == at::kByte && t.dim() == 1 && t.storage_offset() == 0 &&
         t.stride(0) == 1 && static_cast<size_t>(t.numel()) == t.storage().nbytes();
}

// A host tensor over the de-tiled bytes of a spyre storage, viewed like `t`.
at::Tensor image_view(const at::Tensor& image, const at::Tensor& t) {
  auto view = at::empty({0}, t.options().device(at::kCPU));
  view.set_(image.storage(), t.storage_offset(), t.sizes(), t.strides());
  return view;
}

void read_into(const at::Tensor& src, const at::Tensor& host, bool non_blocking) {
  auto& storage = *spyre_storage(src);
  NoGil no_gil;
  std::lock_guard lock(storage.mutex);
  if (!addressable(storage, src.scalar_type())) {  // another dtype's view of a tiled storage
    host.copy_(image_view(read_image(storage), src));
    return;
  }
  bool tiled = storage.tiling != nullptr;
  if (tiled ? !converts_directly(host.scalar_type(), src.scalar_type())
            : host.scalar_type() != src.scalar_type()) {
    auto same_type =
        at::empty_strided(src.sizes(), at::infer_dense_strides(src.sizes(), src.strides()),
                          src.options().device(at::kCPU));
    read_into(src, same_type, false);
    host.copy_(same_type);
    return;
  }
  auto side = host_side(host, tiled);
  int64_t elem_bytes = static_cast<int64_t>(src.element_size());
  if (!non_blocking || !is_pinned_pointer(host.const_data_ptr())) {
    return read_view(storage, view_of(src), side, elem_bytes);
  }
  check_view(storage, view_of(src), elem_bytes);
  auto job = transfer_job(storage, "copy spyre -> cpu", card::Engine::CARD_TO_HOST,
                          device_bytes_of(storage, view_of(src), elem_bytes));
  auto from = card_side(storage, elem_bytes);
  job.run = [from, view = view_of(src), side = std::move(side), keep = host,
             tiling = storage.tiling] {
    card::copy_from_card(from, view, side, numerics(), thread_pool());
  };
  queue_of(storage).submit(std::move(job));
}

void write_from(at::Tensor host, const at::Tensor& dst, bool non_blocking) {
  // forward-mode AD makes tensors of zeros that have no memory
  if (C10_UNLIKELY(host._is_zerotensor())) host = at::zeros(host.sizes(), host.options());
  auto& storage = *spyre_storage(dst);
  NoGil no_gil;
  std::lock_guard lock(storage.mutex);
  if (!addressable(storage, dst.scalar_type())) {
    auto image = read_image(storage);
    image_view(image, dst).copy_(host);
    return write_image(storage, image);
  }
  bool tiled = storage.tiling != nullptr;
  if (tiled ? !converts_directly(host.scalar_type(), dst.scalar_type())
            : host.scalar_type() != dst.scalar_type()) {
    host = host.to(dst.scalar_type());
    non_blocking = false;  // the pinned memory is not ours any more
  }
  auto side = host_side(host, tiled);
  int64_t elem_bytes = static_cast<int64_t>(dst.element_size());
  bool may_not_fit = tiled && host.scalar_type() == at::kLong;
  if (may_not_fit) warn_downcast(false);
  if (!non_blocking || may_not_fit || !is_pinned_pointer(host.const_data_ptr())) {
    if (write_view(storage, view_of(dst), side, elem_bytes)) return;
    carry(storage);
    return write_from(host, dst, false);
  }
  check_view(storage, view_of(dst), elem_bytes);
  auto job = transfer_job(storage, "copy cpu -> spyre", card::Engine::HOST_TO_CARD,
                          device_bytes_of(storage, view_of(dst), elem_bytes));
  auto to = card_side(storage, elem_bytes);
  job.run = [to, view = view_of(dst), side = std::move(side), keep = host,
             tiling = storage.tiling] {
    bool fits = card::copy_to_card(to, view, side, numerics(), thread_pool());
    TORCH_INTERNAL_ASSERT(fits);
  };
  queue_of(storage).submit(std::move(job));
}

// Both storages hold elements of the same bytes, so the card can move them itself.
bool same_elements(const SpyreStorageImpl& a, const SpyreStorageImpl& b) {
  if (!a.tiling || !b.tiling) return !a.tiling && !b.tiling;
  return a.tiling->dtype == b.tiling->dtype &&
         a.tiling->placement.layout.format == b.tiling->placement.layout.format;
}

void copy_on_cards(const at::Tensor& src, const at::Tensor& dst) {
  auto& from = *spyre_storage(src);
  auto& to = *spyre_storage(dst);
  NoGil no_gil;
  std::scoped_lock lock(from.mutex, to.mutex);
  check_view(from, view_of(src), static_cast<int64_t>(src.element_size()));
  check_view(to, view_of(dst), static_cast<int64_t>(dst.element_size()));
  note_copied(from, to, view_of(dst));
  int64_t elem_bytes = static_cast<int64_t>(src.element_size());
  auto src_index = src.device().index(), dst_index = dst.device().index();
  int64_t bytes = device_bytes_of(from, view_of(src), elem_bytes);
  card::Job job;
  auto& card = get_card(dst_index);
  job.name = src_index == dst_index ? "copy spyre -> spyre" : "copy between cards";
  job.stream = current_stream_id(dst_index);
  job.engine = card::Engine::COMPUTE;
  job.device_us = src_index == dst_index
                      ? card.hardware.job_us +
                            2.0 * static_cast<double>(bytes) / card.hardware.memory_bytes_per_us
                      : card.hardware.transfer_us(bytes);
  job.uses = {to.block()};
  job.run = [source = card_side(from, elem_bytes), source_view = view_of(src),
             target = card_side(to, elem_bytes), target_view = view_of(dst),
             keep_source = from.tiling, keep_target = to.tiling] {
    card::copy_on_card(source, source_view, target, target_view, thread_pool());
  };
  if (src_index == dst_index) {
    job.uses.push_back(from.block());
    card.queue.submit(std::move(job));
    return;
  }
  // The source's stream may neither run ahead of the copy nor lag behind it.
  auto& source_card = get_card(src_index);
  int source_stream = current_stream_id(src_index);
  card.queue.wait(job.stream, source_card.queue.record(source_stream));
  int stream = job.stream;
  // The queue holds blocks of its own card only; the source's goes with the job, whatever becomes
  // of it.
  auto* source_block = from.block();
  source_card.memory.retain(source_block);
  std::shared_ptr<void> held(source_block, [&source_card, source_block](void*) {
    source_card.memory.release(source_block);
  });
  job.run = [run = std::move(job.run), held = std::move(held)] { run(); };
  card.queue.submit(std::move(job));
  source_card.queue.wait(source_stream, card.queue.record(stream));
}

void copy_spyre_to_spyre(const at::Tensor& src, const at::Tensor& dst) {
  auto& from = *spyre_storage(src);
  auto& to = *spyre_storage(dst);
  bool whole = is_whole_storage_bytes(src) && is_whole_storage_bytes(dst) && &from != &to &&
               from.nbytes() == to.nbytes();
  if (whole && from.tiling && !to.tiling && from.device() == to.device()) {
    // UntypedStorage.copy_, as deepcopy and clone use it: the copy gets the same tiling.
    to.place(allocate_on(to.device().index(), from.block()->requested), from.tiling);
    const auto& p = from.tiling->placement;
    auto typed = [&](const at::Tensor& bytes) {
      auto t = at::empty({0}, bytes.options().dtype(from.tiling->dtype));
      t.unsafeGetTensorImpl()->set_storage_keep_dtype(bytes.storage());
      t.unsafeGetTensorImpl()->set_sizes_and_strides(p.sizes, p.strides);
      return t;
    };
    return copy_on_cards(typed(src), typed(dst));
  }
  bool direct = src.scalar_type() == dst.scalar_type() && addressable(from, src.scalar_type()) &&
                addressable(to, dst.scalar_type()) && same_elements(from, to) && &from != &to;
  if (direct) return copy_on_cards(src, dst);
  if (src.scalar_type() != dst.scalar_type()) {
    if (&from != &to && cast_on_card(src, dst)) return;
    count_converting_copy();
  }
  // Another dtype, or one storage on both sides (possibly overlapping): by way of the host.
  auto host = to_host(src);
  write_from(host, dst, false);
}

// Conjugate and negative bits live on the tensor, not in memory.
bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

// Below the dispatcher: detach() of a conjugate tensor would resolve it, which copies, which leads
// here.
at::Tensor clear_bits(const at::Tensor& t) {
  auto plain =
      at::Tensor(t.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0), false));
  plain._set_conj(false);
  plain._set_neg(false);
  return plain;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  copy_tensor(self, dst, non_blocking);
  return dst;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  if (self.sizes() != dst.sizes()) dst.resize_(self.sizes());
  copy_tensor(self, dst, false);
  return dst;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
}

// The stock handling of lazy conjugation resolves the source by a copy, which would come back here.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

void copy_from_d2d(const at::Tensor& src, at::Tensor& dst) { copy_tensor(src, dst, false); }

TORCH_LIBRARY(spyre, m) { m.def("copy_from_d2d(Tensor src, Tensor(a!) dst) -> ()"); }
TORCH_LIBRARY_IMPL(spyre, PrivateUse1, m) { m.impl("copy_from_d2d", copy_from_d2d); }

}  // namespace

void copy_tensor(const at::Tensor& src_in, const at::Tensor& dst, bool non_blocking) {
  if (dst.numel() == 0) return;
  at::assert_no_internal_overlap(dst);
  auto src = src_in.sizes() == dst.sizes() ? src_in : src_in.expand_as(dst);
  if (!same_bits(src, dst)) {
    auto host = clear_bits(src);
    if (!host.is_cpu()) host = to_host(host);
    if (src.is_conj() != dst.is_conj()) host = at::_conj_physical(host);
    if (src.is_neg() != dst.is_neg()) host = host.neg();
    if (dst.is_cpu()) {
      clear_bits(dst).copy_(host);
      return;
    }
    return copy_tensor(host, clear_bits(dst), false);
  }
  bool from_spyre = src.device().type() == kSpyre, to_spyre = dst.device().type() == kSpyre;
  if (from_spyre) src = with_spyre_storage(src);
  auto target = to_spyre ? with_spyre_storage(dst) : dst;
  if (from_spyre && to_spyre) {
    bool itself = spyre_storage(src) == spyre_storage(target) && same_view(src, target);
    if (!itself) copy_spyre_to_spyre(src, target);
  } else if (to_spyre) {
    TORCH_CHECK(src.is_cpu(), "cannot copy from ", src.device(), " to ", dst.device(),
                "; copy through the cpu");
    TORCH_CHECK(src.layout() == c10::kStrided,
                "spyre tensors are strided; cannot copy a tensor with layout ", src.layout());
    write_from(src, target, non_blocking);
  } else {
    TORCH_CHECK(dst.is_cpu(), "cannot copy from ", src.device(), " to ", dst.device(),
                "; copy through the cpu");
    TORCH_CHECK(dst.layout() == c10::kStrided,
                "spyre tensors are strided; cannot copy into a tensor with layout ", dst.layout());
    read_into(src, dst, non_blocking);
  }
}

at::Tensor to_host(const at::Tensor& tensor) {
  auto strides = tensor.is_non_overlapping_and_dense()
                     ? tensor.strides().vec()
                     : at::infer_dense_strides(tensor.sizes(), tensor.strides());
  auto host = at::empty_strided(tensor.sizes(), strides, tensor.options().device(at::kCPU));
  if (tensor.numel() > 0) read_into(tensor, host, false);
  return host;
}

at::Tensor to_spyre(const at::Tensor& tensor, c10::DeviceIndex device) {
  auto strides = tensor.is_non_overlapping_and_dense()
                     ? tensor.strides().vec()
                     : at::infer_dense_strides(tensor.sizes(), tensor.strides());
  auto result = new_tensor(tensor.sizes(), strides, tensor.scalar_type(), device);
  if (tensor.numel() > 0) write_from(tensor, result, false);
  return result;
}

void read_view(SpyreStorageImpl& storage, const card::View& view, const card::HostSide& host,
               int64_t elem_bytes) {
  check_view(storage, view, elem_bytes);
  auto job = transfer_job(storage, "copy spyre -> cpu", card::Engine::CARD_TO_HOST,
                          device_bytes_of(storage, view, elem_bytes));
  auto from = card_side(storage, elem_bytes);
  job.run = [&] { card::copy_from_card(from, view, host, numerics(), thread_pool()); };
  NoGil no_gil;
  queue_of(storage).run(std::move(job));
}

bool write_view(SpyreStorageImpl& storage, const card::View& view, const card::HostSide& host,
                int64_t elem_bytes) {
  check_view(storage, view, elem_bytes);
  auto job = transfer_job(storage, "copy cpu -> spyre", card::Engine::HOST_TO_CARD,
                          device_bytes_of(storage, view, elem_bytes));
  auto to = card_side(storage, elem_bytes);
  bool fits = true;
  job.run = [&] { fits = card::copy_to_card(to, view, host, numerics(), thread_pool()); };
  NoGil no_gil;
  queue_of(storage).run(std::move(job));
  if (fits) note_written(storage, view, host);
  return fits;
}

bool get_downcast_warning() {
  int value = g_downcast_warning.load();
  return value < 0 ? settings().downcast_warning : value != 0;
}

void set_downcast_warning(bool enabled) { g_downcast_warning = enabled ? 1 : 0; }

void warn_downcast(bool values_do_not_fit) {
  if (!get_downcast_warning()) return;
  if (values_do_not_fit) {
    TORCH_WARN_ONCE(
        "an int64 value does not fit int32, the card's integer format: this tensor is carried as "
        "host bytes, exact but "
        "out of reach of compiled kernels. Silence this with "
        "torch.spyre.set_downcast_warning(False) or "
        "TORCH_SPYRE_DOWNCAST_WARN=0");
    return;
  }
  if (g_downcast_warned.exchange(true)) return;
  TORCH_WARN(
      "int64 tensors are stored as int32 on the card (int64->int32); values that do not fit are "
      "kept as host bytes. "
      "Silence this with torch.spyre.set_downcast_warning(False) or TORCH_SPYRE_DOWNCAST_WARN=0");
}

}  // namespace spyre
