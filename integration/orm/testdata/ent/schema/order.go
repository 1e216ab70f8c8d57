// Package schema defines the schema from which ent's client is generated.
package schema

import (
	"entgo.io/ent"
	"entgo.io/ent/schema/field"
)

// Order is a row of the table orders.
type Order struct{ ent.Schema }

// Fields implements ent.Interface.
func (Order) Fields() []ent.Field {
	return []ent.Field{field.String("id"), field.String("status")}
}
