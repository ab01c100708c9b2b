// The formats, in the order in which they are tried. A new one is a .cc with such a function, and a line in list.cc.
#pragma once

#include <vector>

#include "scheduler/topology/formats/reading.h"

namespace sluice::topology {

const Format& PlainFormat();  // our own
const Format& SlurmConfFormat();
const Format& SlurmYamlFormat();
const Format& IbnetdiscoverFormat();
const Format& IbnetdiscoverPortsFormat();
const Format& NcclXmlFormat();
const Format& NvidiaSmiFormat();
const Format& KubernetesFormat();
const Format& LldpFormat();

const std::vector<const Format*>& AllFormats();

}  // namespace sluice::topology
