package live

// internalOf is set by package topology/live, which defines the public Management.
var internalOf func(public any) *Management

// SetInternal sets the function behind Internal. Package topology/live calls it, because only that package can read the
// unexported field of its Management.
func SetInternal(of func(public any) *Management) { internalOf = of }

// Internal returns the client behind a *topology/live.Management, and nil for nil. The public type has no methods,
// because users only pass it on.
func Internal(public any) *Management {
	if internalOf == nil {
		return nil // package topology/live is not linked, so there is no such value
	}
	return internalOf(public)
}

// NewPublic is like NewManagement, but returns a value of the public type, which wrap creates from the client.
func NewPublic[T any](cfg ManagementConfig, wrap func(*Management) T) (public T, err error) {
	m, err := NewManagement(cfg)
	if err != nil {
		return public, err
	}
	public = wrap(m)
	m.public = public
	return public, nil
}

// Public returns the *topology/live.Management around a client, as its type T. It returns nil for nil, and for a client
// that NewManagement returned.
func Public[T any](m *Management) (public T) {
	if m != nil {
		public, _ = m.public.(T)
	}
	return public
}
