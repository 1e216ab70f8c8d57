package config

import "github.com/rabbitdelay/rabbitdelay/amqpx/schedule"

// Ceilings are those of the file's destinations, for schedule.Config. A destination without
// one is there with PerSecond 0, which removes what a file before this one has set.
func (c *Config) Ceilings() []schedule.Ceiling {
	var list []schedule.Ceiling
	at := map[[2]string]int{}
	for _, d := range c.Topology.Destinations {
		lane := [2]string{d.Queue, d.Exchange}
		i, listed := at[lane]
		if !listed {
			i = len(list)
			at[lane] = i
			list = append(list, schedule.Ceiling{Queue: d.Queue, Exchange: d.Exchange})
		}
		if d.Ceiling != nil { // of an exchange only one, or all the same
			list[i].PerSecond, list[i].Burst = d.Ceiling.PerSecond, d.Ceiling.Burst
		}
	}
	return list
}
