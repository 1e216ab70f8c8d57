package live

import (
	"cmp"
	"context"
	"net/http"
	"slices"
)

// Publisher is a connection that publishes.
type Publisher struct {
	User       string `json:"user"`
	Connection string `json:"connection"` // as the broker calls it
}

// UnroutedPublishers are the connections with an open channel that has published what
// no queue got at once. Those into an x-delayed-message exchange are among them: the
// plugin reports what it holds to the broker as not routed. The broker does not reveal
// into which exchange a channel publishes, unless it keeps detailed rates. Its figures
// are up to 5 s old. Those of other users are left out without the tag monitoring.
func (m *Management) UnroutedPublishers(ctx context.Context) ([]Publisher, error) {
	var channels []struct {
		User       string     `json:"user"`
		Connection jsonObject `json:"connection_details"`
		Stats      jsonObject `json:"message_stats"` // a list while there are no such figures
	}
	path := m.InVhost("vhosts") + "/channels?columns=user,connection_details.name,message_stats.drop_unroutable,message_stats.return_unroutable"
	if _, err := m.Call(ctx, http.MethodGet, path, nil, &channels); err != nil {
		return nil, m.failed("channels", err)
	}
	list := []Publisher{}
	for _, c := range channels {
		name, _ := c.Connection["name"].(string)
		dropped, _ := c.Stats["drop_unroutable"].(float64)
		returned, _ := c.Stats["return_unroutable"].(float64)
		p := Publisher{c.User, name}
		if dropped+returned > 0 && !slices.Contains(list, p) {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b Publisher) int {
		return cmp.Or(cmp.Compare(a.User, b.User), cmp.Compare(a.Connection, b.Connection))
	})
	return list, nil
}
