package ipaddr

// ServiceDeviceSuffix ends the names of the devices that have addresses of Services on Linux: those
// of backend ipvs, and kube-proxy's. Node ports do not answer at these addresses.
const ServiceDeviceSuffix = "ipvs0"
