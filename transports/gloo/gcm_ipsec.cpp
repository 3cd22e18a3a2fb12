#include <intel-ipsec-mb.h>
#include <openssl/crypto.h>

#include <stdexcept>

#include "transports/gloo/gcm.h"

namespace shardrun::gloo_transport {
namespace {

struct Free {
  void operator()(IMB_MGR* manager) const noexcept { ::free_mb_mgr(manager); }
};

/// The library's functions for this processor. Read-only once chosen, so threads may share them.
const IMB_MGR* functions() {
  static const std::unique_ptr<IMB_MGR, Free> manager = [] {
    std::unique_ptr<IMB_MGR, Free> made(::alloc_mb_mgr(0));
    if (made == nullptr) {
      throw std::runtime_error("Intel's library for IPsec has no memory");
    }
    IMB_ARCH level = IMB_ARCH_NONE;
    ::init_mb_mgr_auto(made.get(), &level);
    if (level == IMB_ARCH_NONE) {
      throw std::runtime_error("Intel's library for IPsec has nothing for this processor");
    }
    return made;
  }();
  return manager.get();
}

}  // namespace

struct Gcm::State {
  const IMB_MGR* library = functions();
  // The library accesses both with aligned instructions, which its header does not mention.
  alignas(64) gcm_key_data key = {};
  alignas(64) gcm_context_data context = {};
};

Gcm::Gcm(const Key& key) : state_(std::make_unique<State>()) {
  IMB_AES128_GCM_PRE(state_->library, key.data(), &state_->key);
}

Gcm::~Gcm() { ::imb_clear_mem(&state_->key, sizeof(state_->key)); }

Tag Gcm::seal(const Nonce& nonce, const std::uint8_t* plain, std::size_t bytes, std::uint8_t* sealed) {
  Tag tag = {};
  if (sealed != nullptr) {
    IMB_AES128_GCM_ENC(state_->library, &state_->key, &state_->context, sealed, plain, bytes, nonce.data(), nullptr, 0,
                       tag.data(), tag.size());
  } else {
    IMB_AES128_GMAC_INIT(state_->library, &state_->key, &state_->context, nonce.data(), nonce.size());
    IMB_AES128_GMAC_UPDATE(state_->library, &state_->key, &state_->context, plain, bytes);
    IMB_AES128_GMAC_FINALIZE(state_->library, &state_->key, &state_->context, tag.data(), tag.size());
  }
  return tag;
}

bool Gcm::open(const Nonce& nonce, std::uint8_t* data, std::size_t bytes, bool decrypts, const Tag& tag) {
  Tag found = {};
  if (decrypts) {
    IMB_AES128_GCM_DEC(state_->library, &state_->key, &state_->context, data, data, bytes, nonce.data(), nullptr, 0,
                       found.data(), found.size());
  } else {
    found = seal(nonce, data, bytes, nullptr);
  }
  return ::CRYPTO_memcmp(found.data(), tag.data(), tag.size()) == 0;
}

}  // namespace shardrun::gloo_transport
