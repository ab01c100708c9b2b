#include "scheduler/topology/formats/list.h"

namespace sluice::topology {

const std::vector<const Format*>& AllFormats() {
  static const auto* const formats = new std::vector<const Format*>{
      &PlainFormat(),   &SlurmConfFormat(), &SlurmYamlFormat(),  &IbnetdiscoverFormat(), &IbnetdiscoverPortsFormat(),
      &NcclXmlFormat(), &NvidiaSmiFormat(), &KubernetesFormat(), &LldpFormat(),
  };
  return *formats;
}

}  // namespace sluice::topology
