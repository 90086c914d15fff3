// Files for TLS on the control plane. If all are empty, the control plane does not use TLS.
//
// **Thread safety**: plain data.
#ifndef VERBENA_TLS_OPTIONS_H_
#define VERBENA_TLS_OPTIONS_H_

#include <string>

namespace verbena {

// PEM files. They are checked again for every new connection (in a client: for every call), so
// replacing them needs no restart. If the replaced files are not usable, the previous ones stay in
// use.
struct TlsOptions {
  std::string ca = {};    // CA bundle that verifies peers' certificates
  std::string cert = {};  // this process's certificate, then its chain up to the CA
  std::string key = {};   // its private key, without a pass phrase
};

}  // namespace verbena

#endif  // VERBENA_TLS_OPTIONS_H_
